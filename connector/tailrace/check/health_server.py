"""What a source database reports about a pipeline, in the same form for Postgres and MongoDB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the stored position is behind the end of the log.

    `since_ms` is a lower bound for when the first unread change was written, on the database's clock; None if there is
    none. `noise`: no more than an idle pipeline skips every few seconds.
    """

    since_ms: int | None
    bytes: int | None = None
    noise: bool = False


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What the database reports now.

    `reader` describes who reads for the pipeline, `absence` that nobody does; both are half sentences. `blind`: the
    user may not see sessions, so an absence proves nothing. `reading`: the first start is reading existing rows.
    `inactive_ms`: since when nobody reads, if the server reports it.
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
