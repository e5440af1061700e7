"""The store of a projection: what it keeps, and the Protocols that every store implements.

For one projection, and in the projection's own database, a store keeps:

- the **next offset** of each partition, the only truth about the projection's progress;
- a **marker** for each event, so that no event is applied twice;
- the **version** of each entity, deleted ones included, so that an old event never overwrites newer state;
- events that **wait** for an earlier version of their entity;
- the **horizon**: markers of events older than that may have been pruned.

All of it changes in the transaction of the handlers' own effects, or not at all. The tests that every store must pass
are in `tests/helpers/store_contract.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

Effects_co = TypeVar("Effects_co", covariant=True)
"""What handlers write with. It differs by store; the kit only passes it on."""


def effects_ended() -> RuntimeError:
    """Returns the error for a handler that uses its effects after the transaction."""
    return RuntimeError("the transaction of these effects has ended: a handler must not keep them")


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


CatchUp = Callable[[Mapping[Partition, int]], Awaitable[Mapping[Partition, int] | None]]
"""Brings the shadow copy of a projection to these positions and stops it. Returns its positions; None if too slow."""


class EventOutcome(StrEnum):
    """The outcome of an event."""

    APPLIED = "applied"
    STALE = "stale"
    """Its entity has this version already, or a newer one."""
    SKIPPED = "skipped"
    """No handler is registered for its type, or replays are skipped."""
    WAITING = "waiting"
    """It waits for an earlier version of its entity."""
    DEAD = "dead"
    """It was dead-lettered. If it arrives again, it is tried again."""

    __hash__ = str.__hash__  # that of Enum takes ten times as long


class Marker(NamedTuple):
    """Records that an event was processed. `time_ms` is the event's own time, so pruning does not depend on clocks."""

    event_id: str
    entity: str | None
    version: int | None
    time_ms: int


class EntityState(NamedTuple):
    """The last applied version of an entity."""

    version: int
    deleted: bool


class WaitingEvent(NamedTuple):
    """An event that waits for an earlier version of its entity, kept whole. `since_ms` is when it started to wait."""

    event_id: str
    entity: str
    version: int
    partition: Partition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    time_ms: int
    since_ms: int


class StoreTransaction(Protocol[Effects_co]):
    """One transaction of a store, for events of one partition."""

    @property
    def effects(self) -> Effects_co:
        """The object that handlers write with."""

    async def position(self) -> int | None:
        """Returns the next offset of the partition, None if it has none yet. Called first in each transaction.

        Locks the partition until the end of the transaction: if two workers believe they own it, the second waits here
        for the first, and then sees what the first has done.
        """

    async def advance(self, offset: int) -> None:
        """Stores the next offset of the partition."""

    async def mark(self, markers: Sequence[Marker]) -> set[str]:
        """Writes markers (APPLIED); returns the ids that are new or were DEAD before. A repeated id counts once."""

    async def set_outcomes(self, outcomes: Mapping[str, EventOutcome]) -> None:
        """Changes the outcome of markers, by event id. They may be of this transaction or of an earlier one."""

    async def entities(self, names: Collection[str]) -> dict[str, EntityState]:
        """Returns the known ones of `names`. Called before `waiting`, `wait` and `save_entities`.

        Events of one entity may come from two partitions. If two transactions have asked for an entity and then save it
        or wait for it, one waits for the other or is retried: otherwise an event could start to wait while the other
        transaction applies its predecessor, and nobody would release it.
        """

    async def save_entities(self, states: Mapping[str, EntityState]) -> None:
        """Writes the states over the old ones."""

    async def wait(self, events: Sequence[WaitingEvent]) -> None:
        """Keeps events that wait; one that waits already (same id) stays unchanged."""

    async def waiting(self, names: Collection[str]) -> list[WaitingEvent]:
        """Returns all events that wait for one of these entities, by entity and version."""

    async def expired(self, before_ms: int, limit: int) -> list[WaitingEvent]:
        """Returns at most `limit` events of this partition that wait since before `before_ms`, oldest first."""

    async def release(self, event_ids: Collection[str]) -> None:
        """Deletes waiting events."""

    async def horizon(self) -> int:
        """Returns the same as `ProjectionStore.horizon`, within this transaction and not older than what `mark` saw."""

    async def flush(self) -> None:
        """Executes the handlers' deferred writes; raises their errors."""


class ProjectionStore(Protocol[Effects_co]):
    """The database of a projection. The projection's `name` separates what several projections keep in one database."""

    async def open(self, name: str) -> None:
        """Connects, and creates the store's own tables or collections if missing. May follow a `close`."""

    async def close(self) -> None:
        """Closes all connections; open transactions are rolled back."""

    def transaction(self, partition: Partition) -> AbstractAsyncContextManager[StoreTransaction[Effects_co]]:
        """Commits at the end of the `with` body, rolls back if it raises. Partitions do not wait for each other.

        Returns from a commit only when the commit survives a crash of the server.
        """

    async def positions(self) -> dict[Partition, int]:
        """Returns the next offset of each partition that has one."""

    async def furthest(self) -> dict[Partition, int]:
        """Returns the highest next offset that each partition ever had: lower offsets have been read before."""

    async def reset(self, offsets: Mapping[Partition, int | None], *, only_missing: bool = False) -> None:
        """Sets next offsets (None removes one), all or none; markers stay.

        `only_missing` leaves partitions that have a next offset as they are.
        """

    async def horizon(self) -> int:
        """Returns the time (Unix milliseconds) before which markers may be gone; 0 if none was ever pruned."""

    async def prune(self, before_ms: int, limit: int) -> int:
        """Deletes at most `limit` markers of events older than `before_ms`; returns how many.

        Raises the horizon to `before_ms` before or with the first deletion, and never lowers it. Markers of DEAD and
        WAITING events stay.
        """

    def is_transient(self, error: BaseException) -> bool:
        """Whether a retry can succeed after this error: the server is unavailable, a deadlock, a conflict."""


@runtime_checkable
class ReadableStore(Protocol):
    """A store that one process can open, and whose positions others can read meanwhile."""

    async def stored_positions(self, name: str) -> dict[Partition, int]:
        """Returns what `positions` would for the projection `name`, without `open`. Changes nothing."""


@runtime_checkable
class BlockStore(Protocol):
    """A store that may undo blocks of events."""

    @property
    def undoes_blocks(self) -> bool:
        """Whether it does. Versions of entities are not undone."""


@runtime_checkable
class ShareableStore(Protocol):
    """A store that several projections of an app may be declared with. Each projection then uses its own."""

    def another(self) -> ProjectionStore[Any]:
        """Returns a store of the same database, for another projection."""
