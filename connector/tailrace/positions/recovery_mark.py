"""The mark of a recovery under way: part of every position that it stores until the gap is closed. Pure.

A pipeline whose position has it is neither where it was nor where it will go on: a start refuses it, and only the
recovery itself, run again, takes it up. It keeps what was known of the position that was given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.errors import RecoveryUnfinished


@dataclass(frozen=True, slots=True)
class Recovery:
    """`lost` is the stored form of the position that was given up, None if there was none.

    `since_ms` is what a person said: rows that were created before are left out. `skips`: the log is not lost, one
    transaction of it is skipped. `went_back`: the database was set back. It is decided once: the slot that the recovery
    creates, and a log that grows, no longer show it.
    """

    id: str
    begun_ms: int
    lost: dict[str, Any] | None = None
    since_ms: int | None = None
    skips: bool = False
    went_back: bool = False


def require_complete(recovery: Recovery | None) -> None:
    """Refuses to stream from a position in the middle of a recovery."""
    if recovery is not None:
        raise RecoveryUnfinished(
            f"the recovery {recovery.id} of this pipeline has begun and is not complete",
            why="Part of the gap may be published, and the rest is not: to go on from here would be to pass it over.",
            remedy="Run `tailrace recover apply FILE` again: it publishes the rest, and nothing twice.",
        )
