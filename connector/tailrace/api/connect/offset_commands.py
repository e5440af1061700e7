"""Reads and rewinds positions, and lists topics, in a process of its own: `run` is its main function.

The checks are those of `tailrace position reset`: a position moves back only while no instance runs the pipeline, and
only as far as the log reaches.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from tailrace.api.connect.offset_shapes import offsets_json
from tailrace.api.errors import status_of
from tailrace.check.health import read_kafka_status
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError, TailraceError
from tailrace.manager.report import ErrorReport
from tailrace.positions.base import Position
from tailrace.replay.points import parse
from tailrace.replay.reset import require_stopped, reset
from tailrace.replay.source_log import describe_position, open_log, resolve, topics_of
from tailrace.state import position_history
from tailrace.worker.wiring import Wiring, wire

SHOW, MOVE, TOPICS = "show", "move", "topics"


def run(words: list[str]) -> int:
    """Prints `{"result": …}`, or `{"status": …, "message": …}` for an error."""
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    what, file, *rest = words
    found: dict[str, Any]
    try:
        wiring = wire(load_pipeline(Path(file)))
        if what == MOVE:
            found = {"result": _moved(wiring, rest[0])}
        elif what == TOPICS:
            found = {"result": _topics(wiring)}
        else:
            found = {"result": offsets_json(wiring.settings.pipeline, read_kafka_status(wiring.kafka).position)}
    except TailraceError as error:
        found = {"status": status_of(error), "message": ErrorReport.of(error).text()}
    sys.stdout.write(json.dumps(found))
    return 0


def _topics(wiring: Wiring) -> list[str]:
    return sorted(topics_of(wiring, position_history.read(wiring.kafka)))


def _moved(wiring: Wiring, wanted: str) -> dict[str, Any]:
    stored = read_kafka_status(wiring.kafka).position
    if stored is None:
        raise ConfigError(
            f"the pipeline {wiring.settings.pipeline} has no stored position",
            why="It was never started, or its offsets topic is lost or was changed.",
            remedy="Start it; `source.start` sets where it begins.",
        )
    point = parse(wanted, datetime.now().astimezone())
    require_stopped(wiring)
    entries = position_history.read(wiring.kafka)
    log = open_log(wiring, stored, entries)
    try:
        target = resolve(wiring, log, entries, point)
        if _is_same(target, stored):
            if wanted == "oldest":
                raise ConfigError(
                    f"the log does not reach back any further than the position, {describe_position(stored)}",
                    remedy="`source.replay_window` keeps more of the log from now on (Postgres); `tailrace replay plan "
                    "FILE --from-table` publishes from the outbox what the log no longer has.",
                )
            return {"message": f"The position stays where it is: {describe_position(stored)}"}
        done = reset(wiring, log, target)
    finally:
        log.close()
    return {
        "message": f"The position was moved back from {describe_position(done.before)} to {describe_position(done.to)}."
        f" Events that are published again have the header tailrace.replay={done.id}",
    }


def _is_same(target: Position, stored: Position) -> bool:
    return target.is_alike(stored) and target.progress == stored.progress
