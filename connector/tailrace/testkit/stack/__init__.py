"""Real servers on this machine, for the demo, the tests and the benchmarks: without Docker, and removed afterwards.

    with Stack() as stack:
        dsn = stack.postgres.create_database("shop")
        produce(bootstrap=stack.kafka.bootstrap)

Each server comes from the first of: an address in TAILRACE_STACK_POSTGRES, TAILRACE_STACK_KAFKA or
TAILRACE_STACK_MONGO; a Docker engine; wheels and jars, run under a reaper (`reaper.py`). Only the last kind
can be killed, paused and restarted (`server.local`): `choice=ServerChoice.LOCAL` selects it.

`Stack(mongo=True)` adds a `MongoServer`, a replica set of one. `KafkaCluster` (three brokers), `MongoReplicaSet` (three
members) and `RegistryServer` (a Confluent-compatible schema registry) are started separately.
"""

from tailrace.testkit.stack.kafka import ClusterMember, KafkaBroker, KafkaCluster
from tailrace.testkit.stack.mongo import MongoServer
from tailrace.testkit.stack.mongo_replica_set import MongoReplicaSet, ReplicaSetMember
from tailrace.testkit.stack.postgres import PostgresServer
from tailrace.testkit.stack.registry import RegistryServer
from tailrace.testkit.stack.server import ServerChoice
from tailrace.testkit.stack.stack import Stack
from tailrace.testkit.stack.waiting import StackError, wait_until

__all__ = [
    "ClusterMember",
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
    "wait_until",
]
