"""Part of `make bench`: the rate of a projection, compared with a Faust worker that only counts the events.

It is also compared with a consumer of the same job that is written by hand, without the kit.

Real Kafka, real Postgres with fsync, one worker process for all four partitions. Each round runs every variant on the
same topic from its beginning. Ratios are taken within a round, and the median counts, because absolute figures depend
on the load of the machine. The result of each projection is checked.

More than 100 % of the bare worker is correct: its events go through Faust's streams and acks one by one, which costs
more than a batch of rows in Postgres; a projection's records go from the consumer straight to its partition workers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.projection_task import Taken, Task, taken
from benchmarks.projection_topic import PARTITIONS, TRANSACTION, expected, publish
from tailrace.projections.core.settings import Settings
from tailrace.testkit.stack import MongoServer, Stack, wait_until

EVENTS = 100_000
WARM_UP = 10_000
ROUNDS = 3
RESULTS = Path(__file__).parent / "results" / "projections.json"
ROOT = Path(__file__).parent.parent


class Way(NamedTuple):
    """One way to consume the topic, measured with `share` of its events."""

    key: str
    name: str
    share: float = 1.0


BARE = Way("bare", "bare Faust, counting")
SINGLE = Way("single", "Postgres, 1 event a transaction", 0.05)
BATCHED = Way("batched", "Postgres, batched")
HAND_WRITTEN = Way("hand_written", "hand-written: confluent-kafka + psycopg")
EXECUTE = Way("execute", "Postgres, batched, own SQL", 0.2)
AGENT = Way("agent", "agent, once() per event", 0.05)
AGENT_TASKS = Way("agent_tasks", "agent, once() per event, 4 tasks", 0.05)
AGENT_BATCHES = Way("agent_batches", "agent, batches of take()")
MONGO = Way("mongo", "MongoDB, batched", 0.3)
WAYS = (BARE, HAND_WRITTEN, BATCHED, SINGLE, AGENT_BATCHES, AGENT, AGENT_TASKS, EXECUTE, MONGO)
REACH_BARE = 0.6
"""Of the bare worker's rate, for the batched projection."""
REACH_SINGLE = 5.0
"""Times the rate of one event a transaction, for the batched projection."""


def main() -> None:
    arguments = _arguments()
    with Stack("16", mongo=True, progress=_say) as stack, tempfile.TemporaryDirectory() as name:
        bench = Bench(stack, Path(name))
        for way in (BARE, HAND_WRITTEN, BATCHED, MONGO):
            bench.measure(way, WARM_UP, "warm")
        measured: dict[str, list[Taken]] = {way.key: [] for way in WAYS}
        counts = {way.key: max(PARTITIONS, int(EVENTS * arguments.scale * way.share)) for way in WAYS}
        for number in range(arguments.rounds):
            for way in WAYS:
                took = bench.measure(way, counts[way.key], f"round{number}")
                measured[way.key].append(took)
                _say(f"round {number + 1}: {way.name}: {counts[way.key] / took.seconds:,.0f} events/s")
        result = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"cores": os.cpu_count(), "arch": platform.machine(), "system": platform.system()},
            "versions": _versions(stack),
            "settings": _settings(stack, bench.payload_bytes),
            "rounds": arguments.rounds,
            "ways": [
                _row(way, counts[way.key], measured[way.key])
                | {"to_bare": median(_ratios(measured, counts, way, BARE))}
                for way in WAYS
            ],
            "batched_to_bare_by_round": _ratios(measured, counts, BATCHED, BARE),
            "batched_to_hand_written_by_round": _ratios(measured, counts, BATCHED, HAND_WRITTEN),
            "batched_to_single_by_round": _ratios(measured, counts, BATCHED, SINGLE),
            "agent_batches_to_batched_by_round": _ratios(measured, counts, AGENT_BATCHES, BATCHED),
            "reach": {"batched_to_bare": REACH_BARE, "batched_to_single": REACH_SINGLE},
        }
    _report(result)
    if arguments.scale == 1:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


class Bench:
    """The servers, and one topic for each number of events."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.payload_bytes = 0
        self._stack = stack
        self._folder = folder
        self._topics: dict[int, str] = {}

    def measure(self, way: Way, events: int, label: str) -> Taken:
        """Runs one worker, from its start to the last event, and checks its result."""
        name = f"{way.key}_{label}"
        file = self._folder / f"{name}.json"
        assert self._stack.mongo is not None
        store = self._stack.mongo.uri if way is MONGO else self._stack.postgres.dsn("postgres")
        task = Task(way.key, name, self._stack.kafka.bootstrap, self._topic(events), events, store, str(file))
        program = ["tailrace", "project", "benchmarks.projection_kit:app", "--log-json"]
        if way is BARE:
            folder = str(self._folder / name)
            program = ["faust", "--quiet", "-A", "benchmarks.projection_bare", "--datadir", folder, "worker"]
            program.append("--without-web")
        elif way is HAND_WRITTEN:
            program = ["benchmarks.projection_hand_written"]
        log = file.with_suffix(".log")
        with log.open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", *program], stdout=output, stderr=output, cwd=ROOT, env=task.environ()
            )
        try:
            wait_until(lambda: file.exists() or worker.poll() is not None, 900, what=f"{name} to be done")
            if worker.poll() is not None:
                raise SystemExit(log.read_text())
        finally:
            worker.terminate()
            worker.wait(30)
        self._check(way, name, events)
        return taken(file)

    def _topic(self, events: int) -> str:
        if events not in self._topics:
            self._topics[events] = f"orders-{events}"
            _say(f"publishing {events:,} events")
            self.payload_bytes = publish(self._stack.kafka, self._topics[events], events)
        return self._topics[events]

    def _check(self, way: Way, name: str, events: int) -> None:
        if way is BARE:
            return
        wanted = (events, *expected(events, once=way is not EXECUTE))
        found = _found_mongo(self._stack.mongo, name) if way is MONGO else self._found(name, way)
        if found != wanted:
            raise SystemExit(f"{name}: markers, orders, shipped and amounts are {found} instead of {wanted}")

    def _found(self, schema: str, way: Way) -> tuple[int, ...]:
        table = "order_totals" if way is EXECUTE else "order_summary"
        markers = "processed_events" if way is HAND_WRITTEN else "tailrace_markers WHERE outcome = 'applied'"
        with self._stack.postgres.connect() as connection:
            connection.execute(f"SET search_path TO {schema}")
            row = connection.execute(
                f"SELECT (SELECT count(*) FROM {markers}), count(*), "
                f"count(*) FILTER (WHERE state = 'shipped'), sum(amount)::bigint FROM {table}"
            ).fetchone()
            connection.execute(f"DROP SCHEMA {schema} CASCADE")
        return tuple(row or ())


def _found_mongo(mongo: MongoServer | None, name: str) -> tuple[int, ...]:
    assert mongo is not None
    with mongo.client() as client:
        found = list(client[name]["order_summary"].find({}, {"state": 1, "amount": 1}))
        markers = client[name]["tailrace_markers"].count_documents({"outcome": "applied"})
        client.drop_database(name)
    shipped = sum(each["state"] == "shipped" for each in found)
    return markers, len(found), shipped, sum(each["amount"] for each in found)


def _row(way: Way, events: int, rounds: Sequence[Taken]) -> dict[str, Any]:
    return {
        "way": way.name,
        "events": events,
        "events_per_s": round(median(events / took.seconds for took in rounds)),
        "events_per_s_by_round": [round(events / took.seconds) for took in rounds],
        "cpu_s_per_million": round(median(took.cpu_seconds for took in rounds) / events * 1e6, 1),
        "peak_mb": round(max(took.peak_mb for took in rounds), 1),
        "anon_mb": round(max(took.anon_mb for took in rounds), 1),
    }


def _ratios(measured: dict[str, list[Taken]], counts: dict[str, int], one: Way, other: Way) -> list[float]:
    """The ratio of two rates, round by round."""
    pairs = zip(measured[one.key], measured[other.key], strict=True)
    shares = counts[one.key] / counts[other.key]
    return [round(theirs.seconds / ours.seconds * shares, 3) for ours, theirs in pairs]


def _settings(stack: Stack, payload_bytes: int) -> dict[str, Any]:
    with stack.postgres.connect() as connection:
        names = ("fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "wal_level")
        postgres = dict(
            connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [list(names)]).fetchall()
        )
    if postgres["fsync"] != "on" or postgres["synchronous_commit"] == "off":
        raise SystemExit("this Postgres does not wait for its disk, so it is no measure")
    return {
        "partitions": PARTITIONS,
        "payload_bytes": payload_bytes,
        "events_in_a_kafka_transaction": TRANSACTION,
        "batched": {"events": Settings.events, "within": Settings.within},
        "postgres": postgres,
    }


def _versions(stack: Stack) -> dict[str, str]:
    assert stack.mongo is not None
    names = ("tailrace", "faust-streaming", "aiokafka", "psycopg", "pymongo")
    return {
        "python": platform.python_version(),
        "postgres": str(stack.postgres.version_num),
        "mongodb": stack.mongo.version,
        **{name: version(name) for name in names},
    }


def _report(result: dict[str, Any]) -> None:
    print(f"\n{'':42}{'events/s':>10}{'to bare':>9}{'CPU s/M':>9}{'peak MB':>9}{'own MB':>8}")
    for row in result["ways"]:
        print(
            f"{row['way']:42}{row['events_per_s']:>10,}{row['to_bare']:>9.0%}"
            f"{row['cpu_s_per_million']:>9.1f}{row['peak_mb']:>9.0f}{row['anon_mb']:>8.0f}"
        )
    bare, single = result["batched_to_bare_by_round"], result["batched_to_single_by_round"]
    by_hand = result["batched_to_hand_written_by_round"]
    print(
        f"\nbatched, median and lowest of {result['rounds']} rounds: "
        f"{median(bare):.0%} and {min(bare):.0%} of bare Faust (reach {REACH_BARE:.0%}), "
        f"{median(by_hand):.0%} and {min(by_hand):.0%} of the hand-written consumer, "
        f"{median(single):.1f} and {min(single):.1f} times one event a transaction (reach {REACH_SINGLE:.0f})\n"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the events, for a quick look (not written)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
