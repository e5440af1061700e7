"""Real servers on this machine, for the demo, the tests and the benchmark: no Docker, nothing left behind.

    with Stack() as stack:
        dsn = stack.postgres.create_database("shop")
        produce(bootstrap=stack.kafka.bootstrap)

Each server comes from the first source there is: an address in TAILRACE_STACK_POSTGRES, TAILRACE_STACK_KAFKA or
TAILRACE_STACK_MONGO, a Docker engine, or wheels and jars run under a guardian (see `guardian.py`). Only the
last kind can be killed, paused and restarted (`server.local`); ask for it with `source=Source.LOCAL`.

`MongoServer` is a replica set of one, and in the stack when asked for (`Stack(mongo=True)`). Three are no part of it:
`KafkaSet`, three brokers, `MongoSet`, a replica set of three, and `Registry`, a Confluent-compatible schema registry.
"""

from tailrace.stack.errors import StackError
from tailrace.stack.flow import Direction
from tailrace.stack.kafka import KafkaBroker
from tailrace.stack.kafka_set import KafkaMember, KafkaSet
from tailrace.stack.mongo import MongoServer
from tailrace.stack.mongo_set import MongoMember, MongoSet
from tailrace.stack.postgres import PostgresServer
from tailrace.stack.proxy import TcpProxy
from tailrace.stack.registry import Registry
from tailrace.stack.source import Source
from tailrace.stack.together import Stack
from tailrace.stack.waiting import wait_until

__all__ = [
    "Direction",
    "KafkaBroker",
    "KafkaMember",
    "KafkaSet",
    "MongoMember",
    "MongoServer",
    "MongoSet",
    "PostgresServer",
    "Registry",
    "Source",
    "Stack",
    "StackError",
    "TcpProxy",
    "wait_until",
]
