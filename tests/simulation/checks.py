"""The invariants of a pipeline, checked at every decision of the coordinator, every confirmation, and at the end.

The oracle knows the ordinal of each committed row. A position covers the rows up to it, so a committed transaction must
contain exactly the rows between the position that was stored before and its own: no loss, no duplicate, nothing that
was rolled back, in order, and together with its position (I1-I5). A confirmed LSN must not be beyond the stored
position (I6). A transaction of an instance that is not the owner would break the first rule (I11).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from simulation.broker import COMMITTED, Broker, Stored, Transaction
from simulation.instance import INVALID, LETTERS, OFFSETS, TOPIC
from tailrace.positions.base import Position, from_stored

PIPELINE = b"p"


class InvariantBroken(AssertionError):
    """A rule of docs/guarantees.md does not hold."""


class SourceHistory(Protocol):
    """What a simulated source knows of its committed rows."""

    def committed_rows(self) -> list[str]:
        """The ids of all committed rows of the outbox, in commit order, from the start of the pipeline on."""

    def covered(self, position: Position) -> int | None:
        """How many of them lie at or before a position; None before the pipeline has begun."""


@dataclass
class Oracle:
    source: SourceHistory
    broker: Broker
    stored: Position | None = None
    covered: int = 0
    committed: int = 0
    """Transactions that were committed."""
    rolled_back: Callable[[], set[str]] = field(default=set)
    owners: list[str] = field(default_factory=list)
    """The processes that have taken ownership, in this order."""
    returned: set[str] = field(default_factory=set)
    """Processes that have published again after a later owner."""
    newest: int = -1
    """The latest owner that has published."""
    last: str = ""

    def appended(self, record: Stored) -> None:
        """Notes who takes ownership."""
        if record.topic == OFFSETS and record.key == PIPELINE + b"/claim":
            self.owners.append(record.writer)

    def decided(self, transaction: Transaction) -> None:
        """Checks a transaction when the coordinator decides it."""
        if transaction.state == COMMITTED:
            self._check_owner(transaction.owner)
            self._check(transaction.records, f"transaction {transaction.number} of {transaction.owner}")

    def _check_owner(self, owner: str) -> None:
        """An instance that was replaced may fence its successor once, by a retry that began before; not twice (I11)."""
        age = max((at for at, each in enumerate(self.owners) if each == owner), default=-1)
        if age < self.newest and owner != self.last:
            if owner in self.returned:
                raise InvariantBroken(
                    f"I11: {owner} publishes again and again, although {self.owners[-1]} has taken over"
                )
            self.returned.add(owner)
        self.newest, self.last = max(self.newest, age), owner

    def _check(self, records: list[Stored], what: str) -> None:
        positions = [each for each in records if each.topic == OFFSETS and each.key == PIPELINE]
        events = [event_id(each) for each in records if each.topic in (TOPIC, LETTERS)]
        if len(positions) != 1:
            raise InvariantBroken(f"I5: {what} has {len(positions)} positions for {events}")
        position = from_stored(json.loads(positions[0].value or b""))
        rows = self.source.committed_rows()
        covers = self.source.covered(position)
        if covers is None:
            covers = self.covered
        if covers < self.covered or (self.stored is not None and position.progress < self.stored.progress):
            raise InvariantBroken(f"I6: {what} stores {position}, behind {self.stored}")
        expected = rows[self.covered : covers]
        if events != expected:
            raise InvariantBroken(
                f"I1-I5: {what} publishes {events} with a position that covers {expected} (from {self.stored} to "
                f"{position})"
            )
        wrong = [
            each.value
            for each in records
            if each.topic in (TOPIC, LETTERS) and (each.topic == LETTERS) != event_id(each).endswith(INVALID)
        ]
        if wrong:
            raise InvariantBroken(f"a valid event was dead-lettered, or an invalid one published: {wrong}")
        self.stored, self.covered, self.committed = position, covers, self.committed + 1

    def finished(self) -> bool:
        """Whether all committed rows are published."""
        return self.stored is not None and self.covered == len(self.source.committed_rows())

    def check_end(self) -> None:
        """Checks what a reader of committed records sees at the end."""
        rows = self.source.committed_rows()
        if self.covered != len(rows):
            raise InvariantBroken(f"I1/I10: {rows[self.covered :]} are not published at the end")
        seen = [event_id(each) for topic in (TOPIC, LETTERS) for each in self.broker.committed(topic)]
        if sorted(seen) != sorted(rows):
            raise InvariantBroken(f"I1-I3: readers see {sorted(seen)}, committed are {sorted(rows)}")
        by_key: dict[str, list[str]] = {}
        for topic in (TOPIC, LETTERS):
            for each in self.broker.committed(topic):
                by_key.setdefault(topic + event_id(each).partition("-")[0], []).append(event_id(each))
        for ids in by_key.values():
            if ids != [each for each in rows if each in ids]:
                raise InvariantBroken(f"I4: the order of a key is {ids}")
        if found := self.rolled_back() & set(seen):
            raise InvariantBroken(f"I3: {found} were rolled back")


def event_id(record: Stored) -> str:
    """The id of the row that a record was made of: an event, or the dead letter of one."""
    for name, value in record.headers or ():
        if name == "id":
            return value.decode() if isinstance(value, bytes) else str(value)
    raise InvariantBroken(f"a record without an id: {record.headers}")
