"""Failpoints: named moments at which tests can kill the process.

Each constant is a moment between two steps whose order carries a guarantee. `TAILRACE_KILL=<name>[:<nth>]` in the
environment kills the process with SIGKILL when it reaches that moment for the nth time: no handler runs and nothing is
flushed, as in a power cut. Without the variable a failpoint costs one comparison.
"""

from __future__ import annotations

import os
import signal

SLOT_INTENDED = "slot-intended"  # the intention is stored, the slot does not exist yet
SLOT_CREATED = "slot-created"  # the slot exists, its position is not stored
TABLE_ROWS_READ = "table-rows-read"  # rows read from the table, none published yet
STREAM_STARTED = "stream-started"  # the walsender streams, nothing has been read
ROWS_READ = "rows-read"  # rows are decoded (perhaps half a transaction), not submitted
BEFORE_PRODUCE = "before-produce"  # a Kafka transaction is open and empty
AFTER_PRODUCE = "after-produce"  # records and position are produced, not committed
AFTER_COMMIT = "after-commit"  # Kafka has committed, the position is not confirmed to Postgres
AFTER_CONFIRM = "after-confirm"  # the position is confirmed to Postgres
IDLE_STORED = "idle-stored"  # a position without events is stored, not confirmed
DRAINING = "draining"  # SIGTERM has come, the last batch is not committed
RELEASING = "releasing"  # some events behind a parked key are published, the rest is not
REDRIVE_BEFORE_PRODUCE = "redrive-before-produce"  # a transaction for dead letters is open and empty
REDRIVE_AFTER_PRODUCE = "redrive-after-produce"  # their records and resolutions are produced, not committed
REDRIVE_AFTER_COMMIT = "redrive-after-commit"  # committed, and not reported yet
SKIP_BEGUN = "skip-begun"  # the intention to skip a transaction is stored, nothing of it is published
PROJECTION_HANDED_OVER = "projection-handed-over"  # an agent gets the events now, it has not settled them
PROJECTION_APPLIED = "projection-applied"  # handlers have run, the store's transaction is not committed
PROJECTION_COMMITTED = "projection-committed"  # the store has committed, and nothing else knows it yet
PROJECTION_LETTER = "projection-letter"  # the dead letter is written, the event is not marked as done
ARCHIVE_WRITTEN = "archive-written"  # a file is stored in the archive, and not verified
ARCHIVE_READ_BACK = "archive-read-back"  # the file is verified, but not listed in the manifest
ARCHIVE_LISTED = "archive-listed"  # the file is listed, its rows are still in the outbox
ARCHIVE_DELETED = "archive-deleted"  # some of its rows are deleted from the outbox
RETENTION_SCHEDULED = "retention-scheduled"  # confirmations and offsets are written, not committed
RETENTION_DELETED = "retention-deleted"  # rows are deleted and recorded, not committed
RETENTION_COMMITTED = "retention-committed"  # a batch of rows is deleted for good, others are not
EXPIRE_UNLISTED = "expire-unlisted"  # the entry of an archive is deleted, its file is not
MARKS_PENDING = "marks-pending"  # a batch is stored in Kafka, none of its delivery marks is written
MARKS_WRITTEN = "marks-written"  # delivery marks are written, their transaction is not committed
MARKS_COMMITTED = "marks-committed"  # the transaction with delivery marks is committed
MARKS_CATCHING_UP = "marks-catching-up"  # some of the marks that an earlier run has left are written
OUTBOX_WRITTEN = "outbox-written"  # the entry is in the embedded outbox, its acceptance has not begun
OUTBOX_ACCEPTED = "outbox-accepted"  # the service has accepted it, the outbox does not know yet
OUTBOX_REJECTING = "outbox-rejecting"  # the service has rejected it, the entry is not deleted
OUTBOX_REJECTED = "outbox-rejected"  # the rejected entry is deleted
DRAIN_WRITTEN = "drain-written"  # a batch is in the drainer's target, none of its entries is deleted
DRAIN_REMOVED = "drain-removed"  # the drained entries are deleted

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
"""The failpoints of a pipeline."""
REDRIVING = (REDRIVE_BEFORE_PRODUCE, REDRIVE_AFTER_PRODUCE, REDRIVE_AFTER_COMMIT)
"""The failpoints of `tailrace dlq redrive`."""
PROJECTING = (PROJECTION_HANDED_OVER, PROJECTION_APPLIED, PROJECTION_COMMITTED, PROJECTION_LETTER)
"""The failpoints of a projection."""
ARCHIVING = (ARCHIVE_WRITTEN, ARCHIVE_READ_BACK, ARCHIVE_LISTED, ARCHIVE_DELETED)
"""The failpoints of `tailrace archive write`."""
RETAINING = (RETENTION_SCHEDULED, RETENTION_DELETED, RETENTION_COMMITTED)
"""The failpoints of `tailrace retention apply`."""
MARKING = (MARKS_PENDING, MARKS_WRITTEN, MARKS_COMMITTED, MARKS_CATCHING_UP)
"""The failpoints of delivery marks."""
ACCEPTING = (OUTBOX_WRITTEN, OUTBOX_ACCEPTED, OUTBOX_REJECTING, OUTBOX_REJECTED)
"""The failpoints of an acceptance with an embedded outbox."""
EMBEDDED_DRAIN = (DRAIN_WRITTEN, DRAIN_REMOVED)
"""The failpoints of the drainer of an embedded outbox."""

_armed, _, _count = os.environ.get("TAILRACE_KILL", "").partition(":")
_left = int(_count or 1)


def reached(name: str) -> None:
    """Kills the process if the environment names this failpoint."""
    global _left  # noqa: PLW0603 - counts down within the process
    if name == _armed:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
