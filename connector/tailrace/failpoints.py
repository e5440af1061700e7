"""Named places where a crash is interesting, so that tests can kill the process exactly there.

Each constant is a moment between two steps whose order carries a guarantee. `TAILRACE_KILL=<name>[:<nth>]` in the
environment ends the process with SIGKILL when it comes there for the nth time: no handler, no flush, no farewell,
as a power cut would. Without the variable a kill point costs one comparison.
"""

from __future__ import annotations

import os
import signal

SLOT_INTENDED = "slot-intended"  # the intention is stored, the slot does not exist yet
SLOT_CREATED = "slot-created"  # the slot exists, its position is not stored
TABLE_ROWS_READ = "table-rows-read"  # rows read from the table, none published yet
STREAM_STARTED = "stream-started"  # the walsender streams, nothing has been read
ROWS_READ = "rows-read"  # rows decoded (perhaps half a transaction), not handed over
BEFORE_PRODUCE = "before-produce"  # a Kafka transaction is open and empty
AFTER_PRODUCE = "after-produce"  # records and position are produced, not committed
AFTER_COMMIT = "after-commit"  # Kafka has committed, Postgres is not told
AFTER_CONFIRM = "after-confirm"  # Postgres is told, too
IDLE_STORED = "idle-stored"  # a position without events is stored, not confirmed
DRAINING = "draining"  # SIGTERM has come, the last batch is not committed
RELEASING = "releasing"  # a part of what waited behind a parked key is published, the rest is not
REDRIVE_BEFORE_PRODUCE = "redrive-before-produce"  # dead letters: a transaction is open and empty
REDRIVE_AFTER_PRODUCE = "redrive-after-produce"  # their records and marks are produced, not committed
REDRIVE_AFTER_COMMIT = "redrive-after-commit"  # committed, and nobody has been told
SKIP_BEGUN = "skip-begun"  # the intention to skip a transaction is stored, nothing of it is published
PROJECTION_APPLIED = "projection-applied"  # handlers have run, the store's transaction is not committed
PROJECTION_COMMITTED = "projection-committed"  # the store has committed, nobody has been told
PROJECTION_LETTER = "projection-letter"  # the dead letter is written, the event is not passed yet
ARCHIVE_WRITTEN = "archive-written"  # a file is in the archive's place, nobody has looked whether it is whole
ARCHIVE_READ_BACK = "archive-read-back"  # it is whole, but not listed
ARCHIVE_LISTED = "archive-listed"  # it is part of the archive, its rows are still in the outbox
ARCHIVE_DELETED = "archive-deleted"  # some of its rows are deleted from the outbox, others are not

ALL = (
    SLOT_INTENDED,
    SLOT_CREATED,
    TABLE_ROWS_READ,
    STREAM_STARTED,
    ROWS_READ,
    BEFORE_PRODUCE,
    AFTER_PRODUCE,
    AFTER_COMMIT,
    AFTER_CONFIRM,
    IDLE_STORED,
    DRAINING,
)
"""Those of a pipeline."""
REDRIVING = (REDRIVE_BEFORE_PRODUCE, REDRIVE_AFTER_PRODUCE, REDRIVE_AFTER_COMMIT)
"""Those of `tailrace dlq redrive`."""
PROJECTING = (PROJECTION_APPLIED, PROJECTION_COMMITTED, PROJECTION_LETTER)
"""Those of a projection."""
ARCHIVING = (ARCHIVE_WRITTEN, ARCHIVE_READ_BACK, ARCHIVE_LISTED, ARCHIVE_DELETED)
"""Those of `tailrace archive write`."""

_armed, _, _count = os.environ.get("TAILRACE_KILL", "").partition(":")
_left = int(_count or 1)


def reached(name: str) -> None:
    """Dies here if the environment asks for it."""
    global _left  # noqa: PLW0603 - a countdown of the process's own life
    if name == _armed:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
