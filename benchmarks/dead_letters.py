"""Part of `make bench`: how dead letters and parked keys slow the other events down.

Three drains of the same shape in one run, on the same warmed-up servers: no bad event; one event in a hundred breaks
its schema and becomes a dead letter; no bad event, but a thousand keys parked before.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.backlog import EVENTS_DDL, SCHEMA, Shape, write_backlog
from benchmarks.processes import Connector, drain, write_pipeline
from tailrace.config.load import load_pipeline
from tailrace.dlq.requests import parking_state
from tailrace.testkit.stack import Stack, wait_until
from tailrace.worker.options import kafka_options

SHAPE = Shape("100 rows a transaction", 2000, 100)
WARM_UP = Shape("warm-up", 1000, 100)
PARKED = 1000
REACH = 0.85
RESULTS = Path(__file__).parent / "results" / "dead_letters.json"

ONE_IN_A_HUNDRED = EVENTS_DDL.replace("'currency', 'EUR'", "'currency', CASE event WHEN 50 THEN 'euro' ELSE 'EUR' END")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the backlogs, for a quick run (not saved)")
    scale = parser.parse_args().scale
    shape = Shape(SHAPE.name, max(1, int(SHAPE.transactions * scale)), SHAPE.events)
    with Stack("16", progress=_say) as stack, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _drain(stack, folder, WARM_UP, "warm", EVENTS_DDL)
        rates = {
            "nothing wrong": _drain(stack, folder, shape, "plain", EVENTS_DDL),
            "1 % bad": _drain(stack, folder, shape, "bad", ONE_IN_A_HUNDRED),
            f"{PARKED:,} keys parked": _drain(stack, folder, shape, "parked", EVENTS_DDL, parked=PARKED),
        }
    first = next(iter(rates.values()))
    rows = [
        {"case": case, "events_per_s": round(rate), "ratio": round(rate / first, 3)} for case, rate in rates.items()
    ]
    print(f"\n{'':20}{'events/s':>10}{'ratio':>8}{'reach':>8}")
    for row in rows:
        print(f"{row['case']:20}{row['events_per_s']:>10,}{row['ratio']:>8.0%}{REACH:>8.0%}")
    if scale == 1:
        result = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "drain": rows}
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def _drain(stack: Stack, folder: Path, shape: Shape, name: str, ddl: str, *, parked: int = 0) -> float:
    dsn = stack.postgres.create_database(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(ddl)
    file = write_pipeline(folder, name, dsn, stack.kafka.bootstrap, SCHEMA)
    if parked:
        settings: dict[str, Any] = json.loads(file.read_text())
        file.write_text(json.dumps({**settings, "on_invalid": "park"}))
    connector = Connector(file)  # creates publication and slot, so that the backlog comes after them
    if parked:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'parked-' || number, 'OrderPlaced', '{}' "
                "FROM generate_series(1, %s) AS number",
                (parked,),
            )
        options = kafka_options(load_pipeline(file))
        wait_until(lambda: len(parking_state(options).keys) == parked, 60, what=f"{parked} parked keys")
    connector.stop()
    _say(f"{name}: draining {shape.total:,} events")
    end = write_backlog(dsn, shape)
    return drain(file, dsn, f"tailrace_{name}", end, shape.total).rate


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
