"""Other pipelines that read the same outbox: what they have not passed must stay for them, too.

The log brings them a row that is gone from the table. But a first read, or a recovery, finds in the outbox only what is
still there. Those that store their positions on the same topic are seen; of any others nobody here can know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from tailrace.errors import ConfigError, TailraceError
from tailrace.positions.base import Position, from_stored, is_same_outbox
from tailrace.positions.mongo import TokenPosition
from tailrace.positions.postgres import LsnPosition
from tailrace.replay.table_points import from_table, is_reading_first
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.state import offsets, position_history
from tailrace.worker.wiring import Wiring

_is_pipeline = re.compile(r"[a-z0-9_-]+").fullmatch
"""As names of pipelines are; those of replays, and of what stands beside a position, have other signs, too."""


def passed_by_all(
    wiring: Wiring, start: Position, before_ms: int, ignored: Collection[str]
) -> tuple[Position, list[str]]:
    """`start` as far as the others have passed it, too, and notes; ConfigError where that cannot be told."""
    notes: list[str] = []
    for name, stored in _sharing(wiring, start, ignored):
        if is_reading_first(stored) or getattr(stored, "recovery", None) is not None:
            raise _refusal(name, f"is reading it: {stored}", "What it has not read yet, it would never publish.")
        if isinstance(start, LsnPosition) and isinstance(stored, LsnPosition):
            start, is_all = _least(wiring, name, start, stored)
            if not is_all:
                notes.append(f"{name} reads this outbox, too, and has not caught up: what it may not have is left out")
        elif isinstance(stored, TokenPosition) and stored.time.seconds * 1000 <= before_ms:
            raise _refusal(name, f"is behind: {stored}", "Documents that go now may be new to it.")
    return start, notes


def _sharing(wiring: Wiring, mine: Position, ignored: Collection[str]) -> Iterator[tuple[str, Position]]:
    """Other pipelines and where they are."""
    for key, value in sorted(offsets.read_keys(wiring.kafka, None).items()):
        name = key.decode(errors="replace")
        if name == wiring.settings.pipeline or name in ignored or not _is_pipeline(name):
            continue
        try:
            stored = from_stored(json.loads(value))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the pipeline {name} may read the same outbox, and its stored position cannot be read: {error!r}",
                why="A newer version of Tailrace wrote it, or something else did. What it has not passed must stay.",
                remedy=f"Archive with that version. If it reads another outbox, or is gone for good, say so: "
                f"--ignore-pipeline {name}. Nothing was changed.",
            ) from None
        if is_same_outbox(mine, stored):
            yield name, stored


def _least(wiring: Wiring, name: str, start: LsnPosition, stored: LsnPosition) -> tuple[LsnPosition, bool]:
    assert start.table_read is not None  # noqa: S101 - it says which rows
    assert not isinstance(wiring.database, MongoOptions)  # noqa: S101 - the position is Postgres's
    kafka = replace(wiring.kafka, pipeline=name)
    its = replace(wiring, kafka=kafka, database=replace(wiring.database, slot=stored.log.slot))
    try:
        found, is_all = from_table(its, replace(stored, cut=None), position_history.read(kafka))
    except TailraceError as error:
        raise _refusal(name, f"has not caught up: {error.what}", error.why) from None
    assert found.table_read is not None  # noqa: S101 - it says which rows
    least = min(start.table_read.snapshot, found.table_read.snapshot, key=lambda text: Snapshot.parse(text).xmin)
    return replace(start, table_read=replace(start.table_read, snapshot=least)), is_all


def _refusal(name: str, what: str, why: str) -> ConfigError:
    return ConfigError(
        f"the pipeline {name} reads the same outbox, and {what}",
        why=why,
        remedy=f"Let {name} catch up, then run it again. If it is gone for good, say so: --ignore-pipeline {name}. "
        "Nothing was changed.",
    )
