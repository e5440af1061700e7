"""What a database says of a pipeline's reading, in words and numbers that hold for either kind. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the stored position is behind the end of the log.

    `since_ms` is when the first of what waits was written, on the database's clock, or a time before that; None if
    nothing waits. `noise` says that it is no more than what a pipeline at rest steps over every few seconds.
    """

    since_ms: int | None
    bytes: int | None = None
    noise: bool = False


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What the database sees now.

    `reader` says who reads for the pipeline, `absence` that nobody does, each as half a sentence; `blind` that it
    cannot be seen from here, so that an absence proves nothing. `reading` says that what was there before the pipeline
    is being read. `inactive_ms`: since when nobody reads, where the server tells.
    """

    now_ms: int
    reader: str
    absence: str
    blind: bool = False
    reading: str = ""
    inactive_ms: int | None = None
    lag: Lag | None = None
    slot: dict[str, Any] | None = None
    oplog: dict[str, Any] | None = None
