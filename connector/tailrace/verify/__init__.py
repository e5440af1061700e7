"""`tailrace verify`: is everything that the outbox holds on Kafka, once, in order and unchanged?"""
