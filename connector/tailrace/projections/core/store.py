"""What a projection keeps, and the small contract that every store fulfils.

A store keeps, for one projection and in the projection's own database:

- the **next offset** of each partition, the truth about how far the projection has come;
- a **marker** for each event it has met, so that no event takes effect twice;
- the **version** of each entity, and of deleted ones too, so that nothing old overwrites what is newer;
- events that **wait** for an earlier version of their entity;
- the **horizon**: markers of events older than that may have been pruned.

All of it changes in the transaction that holds the handlers' own effects, or not at all. `tests/store_contract.py`
holds the tests that a store must pass.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

Effects_co = TypeVar("Effects_co", covariant=True)
"""What handlers are given to write with: it differs by store, and the kit does not look into it."""


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


CatchUp = Callable[[Mapping[Partition, int]], Awaitable[Mapping[Partition, int] | None]]
"""Brings a projection that is made anew to these positions and stops it there; where it is then, or None if that takes
too long.
"""


class EventOutcome(StrEnum):
    """What became of an event."""

    APPLIED = "applied"
    STALE = "stale"
    """Its entity had that version already, or a newer one."""
    SKIPPED = "skipped"
    """Nobody handles its type, or replays are to be skipped."""
    WAITING = "waiting"
    """It waits for an earlier version of its entity."""
    DEAD = "dead"
    """It went to the dead letters. Should it come again, it is tried again."""


class Marker(NamedTuple):
    """That an event was met. `time_ms` is the event's own time, never the clock's: pruning must not depend on when."""

    event_id: str
    entity: str | None
    version: int | None
    time_ms: int


class EntityState(NamedTuple):
    """The last version of an entity that took effect."""

    version: int
    deleted: bool


class WaitingEvent(NamedTuple):
    """An event that waits for an earlier version of its entity, kept whole. `since_ms` is when it began to wait."""

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
        """What handlers write with."""

    async def position(self) -> int | None:
        """The next offset of the partition, None if there is none yet.

        Takes a lock until the end of the transaction: of two workers that believe to own the partition, one waits
        here for the other, and then sees what the other did. It comes first in each transaction.
        """

    async def advance(self, offset: int) -> None:
        """Stores the next offset of the partition."""

    async def mark(self, markers: Sequence[Marker]) -> set[str]:
        """Writes a marker (APPLIED) for each, and returns the ids that are new, or that were DEAD until now.

        An id that comes twice in `markers` counts once.
        """

    async def settle(self, outcomes: Mapping[str, EventOutcome]) -> None:
        """Corrects the outcome of events marked in this transaction or before it, by id."""

    async def entities(self, names: Collection[str]) -> dict[str, EntityState]:
        """Those that are known, of `names`. Asked for before `waiting`, `wait` and `save_entities`.

        Events of an entity may come from two partitions. Of two transactions that have asked for it, and then save it
        or begin to wait for it, one waits for the other or must be done again: otherwise an event could begin to wait
        while another one applies what it waits for, and nobody would release it.
        """

    async def save_entities(self, states: Mapping[str, EntityState]) -> None:
        """Writes them, over what was there."""

    async def wait(self, events: Sequence[WaitingEvent]) -> None:
        """Keeps them; one that waits already (same id) stays as it is."""

    async def waiting(self, names: Collection[str]) -> list[WaitingEvent]:
        """All that wait for one of these entities, by entity and version."""

    async def expired(self, before_ms: int, limit: int) -> list[WaitingEvent]:
        """At most `limit` of this transaction's partition that began to wait before `before_ms`, oldest first."""

    async def release(self, event_ids: Collection[str]) -> None:
        """They wait no more."""

    async def horizon(self) -> int:
        """As `ProjectionStore.horizon`, seen from this transaction and not older than what `mark` saw."""

    async def flush(self) -> None:
        """Carries out what handlers have asked for and the store has put off; errors of theirs come here at last."""


class ProjectionStore(Protocol[Effects_co]):
    """Where a projection lives. `name` is the projection's: what several keep in one database stays apart."""

    async def open(self, name: str) -> None:
        """Connects, and makes what is missing of its own tables or collections. May be called again after `close`."""

    async def close(self) -> None:
        """Ends all connections; a transaction that is open is rolled back."""

    def transaction(self, partition: Partition) -> AbstractAsyncContextManager[StoreTransaction[Effects_co]]:
        """Commits at the end of the block, rolls back if it raises. Partitions do not wait for each other.

        A commit must survive a crash of the server, and its return says that it does.
        """

    async def positions(self) -> dict[Partition, int]:
        """The next offset of each partition that has one."""

    async def furthest(self) -> dict[Partition, int]:
        """The highest next offset that each partition ever had: what is below has been read before."""

    async def reset(self, offsets: Mapping[Partition, int | None]) -> None:
        """Sets next offsets (None: forgets it), all or none. For operators; markers stay."""

    async def horizon(self) -> int:
        """Markers of events before this time (Unix milliseconds) may be gone; 0 if none was ever pruned."""

    async def prune(self, before_ms: int, limit: int) -> int:
        """Deletes at most `limit` markers of events older than `before_ms`, and raises the horizon to `before_ms`.

        The horizon is raised before, or with, the first deletion, and never lowered. Markers of DEAD and WAITING events
        stay. Returns how many were deleted.
        """

    def is_transient(self, error: BaseException) -> bool:
        """Whether this error of a transaction heals by trying again: a server that is away, a deadlock, a conflict."""
