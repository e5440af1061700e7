"""The mark of an unfinished recovery: part of every position that the recovery stores.

A pipeline cannot start from such a position; only running the recovery again can continue. The mark keeps the position
that was given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.errors import RecoveryUnfinished


@dataclass(frozen=True, slots=True)
class Recovery:
    """`lost` is the stored form of the position that was given up, or None.

    `since_ms` is given by the user: rows created before it are left out. `skips`: the log is intact, one transaction is
    skipped. `went_back`: the database was restored to an earlier state. That is decided once, because later it can no
    longer be seen.
    """

    id: str
    begun_ms: int
    lost: dict[str, Any] | None = None
    since_ms: int | None = None
    skips: bool = False
    went_back: bool = False


def require_complete(recovery: Recovery | None) -> None:
    """Raises if the position belongs to an unfinished recovery."""
    if recovery is not None:
        raise RecoveryUnfinished(
            f"the recovery {recovery.id} of this pipeline is not complete",
            why="Only a part of the missed events may be published: to continue from here would lose the rest.",
            remedy="Run `tailrace recover apply FILE` again: it publishes the rest, and nothing twice.",
        )
