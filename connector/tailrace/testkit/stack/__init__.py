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

from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.flow import Direction
from tailrace.testkit.stack.kafka import KafkaBroker
from tailrace.testkit.stack.kafka_set import ClusterMember, KafkaCluster
from tailrace.testkit.stack.mongo import MongoServer
from tailrace.testkit.stack.mongo_set import MongoReplicaSet, ReplicaSetMember
from tailrace.testkit.stack.postgres import PostgresServer
from tailrace.testkit.stack.proxy import TcpProxy
from tailrace.testkit.stack.registry import RegistryServer
from tailrace.testkit.stack.server_choice import ServerChoice
from tailrace.testkit.stack.stack import Stack
from tailrace.testkit.stack.waiting import wait_until

__all__ = [
    "ClusterMember",
    "Direction",
    "KafkaBroker",
    "KafkaCluster",
    "MongoReplicaSet",
    "MongoServer",
    "PostgresServer",
    "RegistryServer",
    "ReplicaSetMember",
    "ServerChoice",
    "Stack",
    "StackError",
    "TcpProxy",
    "wait_until",
]
