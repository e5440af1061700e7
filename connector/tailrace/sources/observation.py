"""What a second session reads about a pipeline's source while the pipeline runs: the lag, the log and the outbox."""

from __future__ import annotations

from dataclasses import dataclass

COUNTED = 10_000
"""Pending events are counted up to this number."""


@dataclass(frozen=True, slots=True)
class SourceObservation:
    """The state of a source at one moment. None means that it is not known, or that this source has no such thing.

    `behind`: changes after the stored position wait to be read. `busy`: the server itself works for the reader, so that
    a position that does not move is no sign of a stall. `lost` says why the log after the position is gone, or is
    empty.
    """

    now_ms: int
    behind: bool = False
    busy: bool = False
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    pending: int | None = None
    """Events after the position, counted up to `COUNTED`; None if the log cannot be counted."""
    inserted: int | None = None
    """Rows inserted into the outbox since the server's statistics began, rolled-back ones included."""
    table_bytes: int | None = None
    retained_bytes: int | None = None
    safe_bytes: int | None = None
    limit_bytes: int | None = None
    log_end: int | None = None
    """A count of the bytes that were ever written to the log; only differences mean something."""
    growth: float | None = None
    """Bytes per second, if the server reports an average."""
    status: str = ""
    """The server's own word for the state of the log."""
    lost: str = ""
    reading_existing: bool = False
    """The rows from before the first start are being read."""
