"""Faults between a connector and Kafka, for services on either database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from helpers.service import Connector, Service
from tailrace.testkit.stack import wait_until
from tailrace.testkit.workload.writer import Mix

HASTY = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""The broker aborts expired transactions twice a second, not every ten seconds."""
IMPATIENT = {"transaction.timeout.ms": 3000, "message.timeout.ms": 2000}

# Stops with a transaction open on the broker: everything is sent, nothing committed.
SLEEPER = """
import signal, threading
from tailrace.kafka.publisher import Publisher
finish, publish = Publisher._finish, Publisher._publish
events, slept = False, False
def look(self, batch):
    global events
    events = bool(batch.records)
    publish(self, batch)
def sleep(self, step):
    global slept
    if events and not slept:
        slept = True
        self._producer.flush(10)
        # To this thread: another thread could handle a signal to the process while this one commits.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    finish(self, step)
Publisher._finish, Publisher._publish = sleep, look
from tailrace.cli import main
main()
"""


# Waits when everything is sent and nothing is committed, until the test lets it continue.
HESITATES = """
import os
from tailrace.kafka.publisher import Publisher
left = 3
finish = Publisher._finish
def hesitate(self, step):
    global left
    left -= 1
    if left == 0:
        self._producer.flush(10)
        open(os.environ["SENT"], "w").close()
        open(os.environ["GO"]).close()  # a named pipe: waits until the test opens its other end
    finish(self, step)
Publisher._finish = hesitate
from tailrace.cli import main
main()
"""


class Hesitation:
    """A connector that waits when its third batch is on the broker and not committed, until `commit`."""

    def __init__(self, service: Service, **start: Any) -> None:
        script, self._sent, self._go = (service.folder / name for name in ("hesitates.py", "sent", "go"))
        script.write_text(HESITATES)
        os.mkfifo(self._go)
        self.connector = service.start(program=[str(script)], SENT=str(self._sent), GO=str(self._go), **start)

    def wait_until_sent(self) -> None:
        log = self.connector.log
        wait_until(lambda: self._sent.exists() or not self.connector.running, 60, what=f"a batch to be sent:\n{log}")
        assert self._sent.exists(), self.connector.log

    def commit(self) -> None:
        self._go.open("w").close()


def is_stopped(connector: Connector) -> bool:
    return Path(f"/proc/{connector.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def sleeping(service: Service) -> Connector:
    """Starts a connector that stops itself (SIGSTOP) while it publishes."""
    script = service.folder / "sleeper.py"
    script.write_text(SLEEPER)
    service.configure(limits={"batch_records": 5})
    connector = service.start(wait=False, program=[str(script)])
    connector.says('"running"')
    writer = service.writer(
        mix=Mix(invalid=0.0)
    )  # a batch of dead letters alone would leave no open transaction on the topic
    for _ in range(10):
        writer.transaction(events=7)
    wait_until(lambda: is_stopped(connector), 60, what=f"the connector to stop itself; its log:\n{connector.log}")
    return connector


@contextmanager
def read_only(service: Service, topic: str) -> Iterator[None]:
    """Returns the ACLs that let everybody read `topic` and forbid writing to it."""
    admin = service.kafka.admin()

    def binding(operation: AclOperation, permission: AclPermissionType) -> AclBinding:
        return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*", operation, permission)

    bindings = [
        binding(AclOperation.WRITE, AclPermissionType.DENY),
        binding(AclOperation.READ, AclPermissionType.ALLOW),
        binding(AclOperation.DESCRIBE, AclPermissionType.ALLOW),
    ]
    for created in admin.create_acls(bindings).values():
        created.result(20)
    try:
        yield
    finally:
        everything = AclBindingFilter(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for deleted in admin.delete_acls([everything]).values():
            deleted.result(20)
