"""Part of `make bench`: the cost of schemas. The same backlog is drained without validation and as Avro.

Each pipeline has its own slot before the same backlog, and drains it in the same run on the same warmed-up servers;
compare the ratios to the drain without a schema. The cost of each step per event is also measured alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import timeit
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from benchmarks.backlog import EVENTS_DDL, SCHEMA, Shape, payload_bytes, write_backlog
from benchmarks.processes import Connector, Drain, drain
from benchmarks.real_events import FLAT_AVRO, REAL_DDL, TYPES, avro_schema, json_schema
from tailrace.event import OutboxEvent
from tailrace.routing.patterns import glob
from tailrace.routing.router import Router
from tailrace.routing.specs import Rule, RuleCondition, TopicSpec
from tailrace.schemas.compiled import SchemaSet
from tailrace.schemas.folder import load_folder
from tailrace.schemas.validation import PayloadValidator
from tailrace.testkit.stack import RegistryServer, Stack
from tailrace.testkit.topic_reader import read_all

SHAPE = Shape("100 rows a transaction", 1500, 100)
WARM_UP = Shape("warm-up", 1000, 100)
ROUNDS = 5
RESULTS = Path(__file__).parent / "results" / "schemas.json"

SCHEMAS: dict[str, dict[str, dict[str, Any]]] = {
    "flat": {"json": {"OrderPlaced": SCHEMA}, "avro": {"OrderPlaced": FLAT_AVRO}},
    "real": {
        "json": {name: json_schema(name) for name in TYPES},
        "avro": {name: avro_schema(name) for name in TYPES},
    },
}
DDL = {"flat": EVENTS_DDL, "real": REAL_DDL}
REACH = {("flat", "json"): 0.85, ("real", "json"): 0.60, ("flat", "avro"): 0.60, ("real", "avro"): 0.60}


def main() -> None:
    arguments = _arguments()
    result: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "drain": [], "steps": []}
    with (
        Stack("16", progress=_say) as stack,
        RegistryServer(progress=_say) as registry,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        for kind in ("flat", "real"):
            for form in ("json", "avro"):
                write_schemas(folder / f"{kind}-{form}", SCHEMAS[kind][form], form)
        _drains(stack, registry.url, folder, "flat", WARM_UP, "warm", 1)
        for kind in ("flat", "real"):
            scaled = Shape(SHAPE.name, max(1, int(SHAPE.transactions * arguments.scale)), SHAPE.events)
            result["drain"] += _drains(stack, registry.url, folder, kind, scaled, kind, ROUNDS)
            result["steps"].append(_steps(stack, folder, kind))
    _report(result)
    if arguments.scale == 1:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def write_schemas(folder: Path, documents: dict[str, dict[str, Any]], form: str) -> None:
    for subject, document in documents.items():
        file = folder / subject / ("1.json" if form == "json" else "1.avsc")
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(document))


def _drains(
    stack: Stack, url: str, folder: Path, kind: str, shape: Shape, name: str, rounds: int
) -> list[dict[str, Any]]:
    """Drains the same backlog `rounds` times, in turns with each variant; returns the medians."""
    dsn = stack.postgres.create_database(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(DDL[kind])
    variants: dict[str, dict[str, Any]] = {
        "none": {},
        "json": {"schemas": {"folder": f"{kind}-json"}},
        "avro": {
            "schemas": {"folder": f"{kind}-avro", "registry": {"url": url}},
            "format": {"value": "avro", "schema_id": "prefix"},
        },
    }
    files = {
        (variant, number): _pipeline(folder, f"{name}_{variant}_{number}", dsn, stack, more)
        for number in range(rounds)
        for variant, more in variants.items()
    }
    _register(files["avro", 0])
    for file in files.values():
        Connector(file).stop()  # creates publication and slot, so that the backlog comes after them
    _say(f"{kind}: writing {shape.total:,} events")
    end = write_backlog(dsn, shape)
    drains: dict[str, list[Drain]] = {variant: [] for variant in variants}
    for (variant, number), file in files.items():
        _say(f"{kind}: draining, {variant}")
        pipeline = f"{name}_{variant}_{number}"
        drains[variant].append(drain(file, dsn, f"tailrace_{pipeline}", end, shape.total))
        arrived = len(read_all(stack.kafka.bootstrap, [f"{pipeline}.order"]))
        if arrived != shape.total:
            raise SystemExit(f"{arrived:,} events arrived instead of {shape.total:,}")
    return [_row(kind, variant, payload_bytes(dsn), done, drains["none"]) for variant, done in drains.items()]


def _row(kind: str, variant: str, size: int, done: list[Drain], without: list[Drain]) -> dict[str, Any]:
    rate = median(each.rate for each in done)
    return {
        "events": kind,
        "variant": variant,
        "payload_bytes": size,
        "events_per_s": round(rate),
        "cpu_s_per_million": round(median(each.cpu_seconds / each.events for each in done) * 1e6, 2),
        "ratio": round(rate / median(each.rate for each in without), 3),
        "rounds": [round(each.rate) for each in done],
    }


def _pipeline(folder: Path, name: str, dsn: str, stack: Stack, more: dict[str, Any]) -> Path:
    file = folder / f"{name}.yaml"
    settings = {
        "pipeline": name,
        "source": {"postgres": dsn, "table": "public.outbox"},
        "topics": {"template": f"{name}.{{aggregate}}", "partitions": 3},
        "kafka": {"bootstrap": stack.kafka.bootstrap},
        **more,
    }
    file.write_text(json.dumps(settings))
    return file


def _register(file: Path) -> None:
    from tailrace.cli import main as tailrace

    try:
        tailrace(["schemas", "register", str(file), "--yes"])
    except SystemExit as ended:
        if ended.code:
            raise


def _steps(stack: Stack, folder: Path, kind: str) -> dict[str, Any]:
    """Measures each step alone, per event, over the events of the table."""
    with psycopg.connect(stack.postgres.dsn(kind)) as connection:
        rows = connection.execute("SELECT type, aggregateid, payload::text FROM outbox LIMIT 1000").fetchall()
    events = [
        OutboxEvent("e", type_name, "order", key.encode(), text.encode(), None, "0/1:0", 0, [], keys_unique=True)
        for type_name, key, text in rows
    ]
    rules = [Rule((RuleCondition("type", (glob(f"Other{number}*"),)),)) for number in range(9)]
    router = Router([TopicSpec(f"t{number}", rule=rule) for number, rule in enumerate(rules)], "{aggregate}")
    plain = PayloadValidator(load_folder(folder / f"{kind}-json"), max_bytes=1_000_000).validate
    avro = PayloadValidator(load_folder(folder / f"{kind}-avro"), max_bytes=1_000_000).validate
    avro_long_way = PayloadValidator(
        _without_encode_text(load_folder(folder / f"{kind}-avro")), max_bytes=1_000_000
    ).validate

    def encode(event: OutboxEvent) -> bytes:
        value, schema = avro(event, "t")
        assert schema is not None
        return schema.encode(value)

    steps = {
        "route": router.route,
        "check_json": lambda e: plain(e, "t"),
        "check_and_encode_avro": encode,
        "check_avro_long_way": lambda e: avro_long_way(e, "t"),
    }
    return {"events": kind, **{name: _microseconds(step, events) for name, step in steps.items()}}


def _without_encode_text(schemas: SchemaSet) -> SchemaSet:
    """The same schemas without the fast Avro path, so that every payload is parsed."""
    return SchemaSet.of(replace(schema, encode_text=None) for schema in schemas)  # type: ignore[type-var]


def _microseconds(step: Any, events: list[OutboxEvent]) -> float:
    def run() -> None:
        for event in events:
            step(event)

    return round(min(timeit.repeat(run, number=3, repeat=5)) / 3 / len(events) * 1e6, 2)


def _report(result: dict[str, Any]) -> None:
    print(f"\n{'':16}{'payload':>9}{'events/s':>10}{'ratio':>8}{'reach':>8}{'CPU s/M':>9}")
    for row in result["drain"]:
        reach = REACH.get((row["events"], row["variant"]))
        print(
            f"{row['events'] + ', ' + row['variant']:16}{row['payload_bytes']:>7} B{row['events_per_s']:>10,}"
            f"{row['ratio']:>8.0%}{f'{reach:.0%}' if reach else '':>8}{row['cpu_s_per_million']:>9.1f}"
        )
    print("\nµs per event, each step alone:")
    for row in result["steps"]:
        print(f"  {row['events']}: " + ", ".join(f"{name} {value}" for name, value in row.items() if name != "events"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the backlogs, for a quick run (not saved)")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
