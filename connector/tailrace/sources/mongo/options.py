"""What a MongoDB source is told. Free of the driver, which only those need who have a MongoDB."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.sources.mongo.stream_spec import StreamSpec


@dataclass(frozen=True, slots=True)
class MongoOptions:
    """What the source needs to know; the settings of the same names, and which fields the layout reads."""

    uri: str
    app_name: str
    database: str
    collections: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    ignored: frozenset[str]
    payload: str
    timestamp: str | None = None
    create: bool = True
    beginning: bool = False
    order_by: tuple[str, ...] = ("_id",)
    link_timeout: float = 30.0
    adopt: bool = False
    untimed_ms: int | None = None
    """The time of documents that were there before and have none; None for when they are read."""

    @property
    def watched(self) -> StreamSpec:
        return StreamSpec(self.database, self.collections)
