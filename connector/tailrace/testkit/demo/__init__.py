"""`tailrace demo`: real servers, two services, a projection, all of them killed, and a verdict.

`environment` starts Postgres, MongoDB and Kafka and creates the files a user would write. A `service` is a database
with an outbox and a connector: `orders` on Postgres, `users` on MongoDB. `order_summary` is a projection as a user
would write it. `scenario` controls the run, `display` shows it, `report` holds the verdict. The schemas and topics are
those at the root of the repository.
"""
