"""Writes docs/benchmarks.md and docs/speed.svg from benchmarks/results/*.json, so that no figure is copied by hand."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools import compiled_page, race_page

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
PAGE = """\
# Benchmarks

<!-- Written by `make docs` from benchmarks/results/*.json. Do not edit. -->

`make bench`, `make race` and `python -m benchmarks.compiled` start real servers, measure what is here, and write
[benchmarks/results](../benchmarks/results). The figures below come from those files. All were measured on {cores} cores
that also ran Postgres or MongoDB, Kafka and the load. Rounds of one run differ by up to a third, and other work on the
machine slows everything: compare the ratios, which are taken within one run. The brokers run without Java's second
compiler, which would compile on the measured cores for minutes.

![events per second](speed.svg)

## Postgres to Kafka

`python -m benchmarks.drain` drains a backlog with exactly-once delivery and JSON Schema validation on, in turns with
`pg_recvlogical`, which reads the same backlog and writes it to /dev/null. Median of {drain_rounds} rounds
({drain_at}):

{drain}

Commit to consumer at a steady {rate:,.0f} transactions/s: p50 {p50:.0f} ms, p99 {p99:.0f} ms.

## MongoDB to Kafka

`python -m benchmarks.mongo` does the same for a change stream, in turns with two bare readers that only count: pymongo
taking raw batches, and pymongo's `watch` with raw documents. Median of {mongo_rounds} rounds ({mongo_at}):

{mongo}

Commit to consumer at {mongo_rate:,.0f} transactions/s, the most that one writer reached: p50 {mongo_p50:.0f} ms, p99
{mongo_p99:.0f} ms.

## Beside Debezium

`make race` runs Tailrace, Debezium on Kafka Connect (exactly-once on and off) and the bare readers on the same servers.
It needs up to 40 minutes on two idle cores; `PHASES=drain` runs a part, and `EVENTS` changes the backlogs, whose result
is then printed and not stored. Every contender publishes the same backlog to its own topic, and a consumer checks that
each event arrived, with exactly-once: once. Tailrace validates each event, Debezium does not.

Times are those at which Kafka stored the records. A drain is measured from the moment when the contender reads the
database's log, so that neither the start of Java nor of a connector counts. The rate after warm-up is that of the
second half. CPU is that of the contender's own processes; beside it that of the walsender or of all of MongoDB, and of
the broker. Peak memory is resident memory; Java may fill its heap (`-Xmx`). Several pipelines are one process each with
Tailrace, whose peaks are added although they share pages, and connectors of one worker with Debezium. For the latency,
writers commit by a schedule, which no contender can slow down, and the rate that they reached is named; it is the time
from just before the commit until a consumer has the event. Larger events, larger transactions and more pipelines show
how cost grows: Tailrace at every step, Debezium at the ends.

{race}

## Compiled wheels

`make wheels` builds wheels in which the modules that run for each event are compiled
([performance.md](performance.md)). `python -m benchmarks.compiled` drains the same backlogs with them and with the pure
sources, in turns.
{compiled}

## Schemas

`python -m benchmarks.{schemas_module}` drains the same backlog without a schema and as Avro. "flat" is 8 fields in
{flat_bytes} B, "real" 20 fields with nested arrays, patterns and formats in {real_bytes} B. Median of {schemas_rounds}
rounds ({schemas_at}):

{schemas}

The cost of single steps per event, measured alone, in µs. Schemas with unions of more than null and one type, or with
records that contain themselves, take [the general Avro encoder](schemas.md#what-validation-costs):

{steps}

## Dead letters and parked keys

`python -m benchmarks.{letters_module}` drains the same backlog with bad events in it, and with keys parked before. One
round each ({letters_at}):

{letters}

## Projections

`python -m benchmarks.projections` applies a topic with {partitions} partitions to a database with real fsync, in turns
with a bare Faust worker that only counts. Median of {projection_rounds} rounds ({projections_at}):

{projections}

Batched, a projection is faster than bare Faust because its records are read by confluent-kafka and do not go through
Faust's streams. The hand-written consumer does the same job with a table of processed events and no more: no retries,
dead letters, versions, pruning or metrics. One transaction per event (`once()` per event) waits for the disk each time;
an agent that takes batches does not. A handler that awaits its own statement for each event ("own
SQL") is slower: use `effects.upsert` where you can.

## Blocks in RocksDB

`python -m benchmarks.{rocksdb_module}` commits blocks with their undo log to a `RocksStore`, in turns with the bare
driver, which writes the same keys and values of {rocksdb_bytes} B in one batch and nothing else. Both wait for the disk
with each block. Median of {rocksdb_rounds} rounds ({rocksdb_at}):

{rocksdb}

## Verify

`python -m benchmarks.{verify_module}` compares an outbox with its topics. An event counts once, though it is read as a
row and as a record. The bare readers are a `COPY` of the table and a consumer that throw everything away. Fastest of
{verify_rounds} rounds ({verify_at}):

{verify}

## Delivery marks

`python -m benchmarks.{marks_module}` drains the same backlog without marks, with a watermark and with row marks, in
turns. Median of {marks_rounds} rounds ({marks_at}):

{marks}

{marks_steady}

## Worker

`python -m benchmarks.{worker_module}` runs a worker ([worker.md](worker.md)) with idle pipelines, each with its own
database, after {worker_events:,} events each. PSS counts memory that several processes share in equal parts, USS is
what a process has alone ({worker_at}):

{worker}

Each further pipeline needs {worker_further:.0f} MB, and when idle {pipeline_cpu:.1f} % of a core. The rest is the
worker process and the warm process from which pipeline processes are forked: {worker_cpu:.1f} % of a core with
{worker_pipelines} pipelines.

## Metrics

`python -m benchmarks.{metrics_module}` drains the same backlog with metrics, probe and watchdog, and without them, in
turns. Median of {metrics_rounds} rounds ({metrics_at}). At most {metrics_allowed} of the rate may be lost. Other work
on the machine made rates and CPU time of single rounds differ by a third and more, so that these drains cannot resolve
a cost of a few percent:

{metrics}

All that is recorded for a full batch of {alone_events:,} events takes {alone_us:.0f} µs, measured alone: about a
hundredth of a percent of the time that the batch takes.

## Outbox writer

`python -m benchmarks.{writer_module}` adds events with `outbox.add` and, in turns on the same connection, with the
INSERT that a service would write by hand. Lower quartile of {writer_calls:,} calls each, in microseconds ({writer_at}):

{writer}
"""


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    columns = head.split("|")
    lines = [f"| {' | '.join(column.strip() for column in columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def count(number: float) -> str:
    """Three significant digits, with separators."""
    digits = max(len(str(int(number))) - 3, 0)
    return f"{round(number, -digits):,.0f}"


def percent(ratio: float) -> str:
    return f"{ratio * 100:.0f} %"


def _marked_rate(database: str, steady: dict[str, Any]) -> str:
    marked, unmarked = steady["rows"], steady["none"]
    return (
        f"{database}: at a steady {marked['rate']:,.0f} events/s, row marks are at most {marked['behind_s']} s behind. "
        f"Commit to consumer: p50 {marked['p50_ms']:.0f} ms, p99 {marked['p99_ms']:.0f} ms; without marks p50 "
        f"{unmarked['p50_ms']:.0f} ms, p99 {unmarked['p99_ms']:.0f} ms."
    ) + (" Its collection has the layout `document`, and 10 events share a transaction." * (database == "MongoDB"))


def page() -> str:
    drain, mongo, schemas, letters = result("latest"), result("mongo"), result("schemas"), result("dead_letters")
    projections, verify, writer = result("projections"), result("verify"), result("outbox_writer")
    marks, worker, metrics = result("marks"), result("worker"), result("metrics")
    rocksdb = result("rocksdb")
    marked = {"Postgres": marks, **({"MongoDB": marks["mongo"]} if "mongo" in marks else {})}
    sizes = {each["events"]: each["payload_bytes"] for each in schemas["drain"]}
    text = PAGE.format(
        race=race_page.tables(race_page.stored()),
        compiled=compiled_page.text(),
        cores=drain["machine"]["cores"],
        **{
            f"{name}_at": found["at"][:10]
            for name, found in {"drain": drain, "mongo": mongo, "schemas": schemas}.items()
        },
        **{f"{name}_at": found["at"][:10] for name, found in {"letters": letters, "verify": verify}.items()},
        projections_at=projections["at"][:10],
        drain_rounds=len(drain["drain"][0]["rounds"][0]),
        drain=table(
            "backlog | events/s | of `pg_recvlogical` | CPU s per million | peak memory",
            (
                (f"{d['events']:,} events, {d['shape']}", count(d["events_per_s"]), percent(d["ratio"]), *_cost(d))
                for d in drain["drain"]
            ),
        ),
        rate=drain["latency"]["asked_rate"],
        p50=drain["latency"]["p50_ms"],
        p99=drain["latency"]["p99_ms"],
        mongo_rounds=len(mongo["drain"][0]["rounds"][0]),
        mongo=table(
            "backlog | events/s | of raw batches | of `watch` | CPU s per million | peak memory",
            (
                (
                    f"{d['events']:,} events, {d['shape']}",
                    count(d["events_per_s"]),
                    percent(d["ratio"]),
                    percent(d["ratio_to_watch"]),
                    *_cost(d),
                )
                for d in mongo["drain"]
            ),
        ),
        mongo_rate=mongo["latency"]["rate"],
        mongo_p50=mongo["latency"]["p50_ms"],
        mongo_p99=mongo["latency"]["p99_ms"],
        schemas_module="schemas",
        flat_bytes=sizes["flat"],
        real_bytes=sizes["real"],
        schemas_rounds=len(schemas["drain"][0]["rounds"]),
        schemas=table(
            "events | schema | events/s | of the rate without | CPU s per million",
            (
                (
                    d["events"],
                    d["variant"],
                    count(d["events_per_s"]),
                    percent(d["ratio"]),
                    f"{d['cpu_s_per_million']:.0f}",
                )
                for d in schemas["drain"]
            ),
        ),
        steps=table(
            "events | route | validate JSON | validate and encode Avro | general Avro encoder",
            (
                [s["events"], *(f"{value:.1f}" for name, value in s.items() if name != "events")]
                for s in schemas["steps"]
            ),
        ),
        letters_module="dead_letters",
        letters=table(
            "backlog | events/s | of the rate without",
            ((d["case"], count(d["events_per_s"]), percent(d["ratio"])) for d in letters["drain"]),
        ),
        partitions=projections["settings"]["partitions"],
        projection_rounds=projections["rounds"],
        projections=table(
            "store | events | events/s | of bare Faust | CPU s per million | peak memory",
            (
                (w["way"], f"{w['events']:,}", count(w["events_per_s"]), percent(w["to_bare"]), *_cost(w))
                for w in projections["ways"]
            ),
        ),
        rocksdb_module="rocksdb",
        rocksdb_bytes=rocksdb["value_bytes"],
        rocksdb_rounds=len(rocksdb["commits"][0]["rounds"][0]),
        rocksdb_at=rocksdb["at"][:10],
        rocksdb=table(
            "writes in a block | blocks/s | writes/s | of the bare driver",
            (
                (f"{r['writes']:,}", count(r["blocks_per_s"]), count(r["writes_per_s"]), percent(r["ratio"]))
                for r in rocksdb["commits"]
            ),
        ),
        marks_module="marks",
        marks_rounds=" or ".join(sorted({str(len(m["rounds"])) for found in marked.values() for m in found["drain"]})),
        marks_at=marks["at"][:10],
        marks=table(
            "database | marks | events/s | of the rate without | all marked after",
            (
                (database, m["marks"], count(m["events_per_s"]), percent(m["ratio"]), f"{m['complete_after_s']:.0f} s")
                for database, found in marked.items()
                for m in found["drain"]
            ),
        ),
        marks_steady="\n\n".join(_marked_rate(database, found["steady"]) for database, found in marked.items()),
        worker_module="worker",
        worker_events=worker["events_before"],
        worker_at=worker["at"][:10],
        worker_further=worker["further_pipeline_pss_mb"],
        pipeline_cpu=worker["measured"][-1]["pipeline_cpu_percent"],
        worker_cpu=worker["measured"][-1]["worker_cpu_percent"],
        worker_pipelines=worker["measured"][-1]["pipelines"],
        worker=table(
            "pipelines | all (PSS) | each pipeline process (PSS) | its own (USS) | worker and warm process (PSS)",
            (
                (
                    w["pipelines"],
                    f"{w['total_pss_mb']:.0f} MB",
                    f"{w['pipeline_pss_mb']:.0f} MB",
                    f"{w['pipeline_uss_mb']:.0f} MB",
                    f"{w['worker_pss_mb']:.0f} MB",
                )
                for w in worker["measured"]
            ),
        ),
        metrics_module="metrics",
        metrics_rounds=len(metrics["drain"][0]["rounds"][0]),
        metrics_at=metrics["at"][:10],
        metrics_allowed=percent(metrics["allowed"]),
        alone_events=metrics["alone"]["events"],
        alone_us=metrics["alone"]["us_per_batch"],
        metrics=table(
            "backlog | events/s | without | CPU s per million | without | cost",
            (
                (
                    f"{m['events']:,} events, {m['shape']}",
                    count(m["events_per_s"]),
                    count(m["without_events_per_s"]),
                    f"{m['cpu_s_per_million']:.1f}",
                    f"{m['without_cpu_s_per_million']:.1f}",
                    f"{m['cost'] * 100:.1f} %",
                )
                for m in metrics["drain"]
            ),
        ),
        writer_module="outbox_writer",
        writer_calls=writer["calls"],
        writer_at=writer["at"][:10],
        writer=table(
            "driver | INSERT | `add` | ratio",
            (
                (w["driver"], f"{w['insert_us']:.0f}", f"{w['add_us']:.0f}", f"{w['ratio']:.2f}")
                for w in writer["writer"]
            ),
        ),
        verify_module="verify",
        verify_rounds=len(verify["verify"][0]["all_rounds_events_per_s"]),
        verify=table(
            "events | events/s | bare `COPY` | bare consumer | CPU s per million | peak memory",
            (
                (
                    f"{v['events']:,}",
                    count(v["events_per_s"]),
                    count(v["outbox_alone_events_per_s"]),
                    count(v["topics_alone_events_per_s"]),
                    *_cost(v),
                )
                for v in verify["verify"]
            ),
        ),
    )
    return reflowed(text) + "\n"


def reflowed(text: str) -> str:
    """The text with its paragraphs wrapped again, since figures are longer or shorter than their names."""
    blocks = text.strip().split("\n\n")
    plain = (block[0] not in "#<|!" for block in blocks)
    return "\n\n".join(
        "\n".join(textwrap.wrap(block, 120, break_on_hyphens=False)) if is_plain else block
        for block, is_plain in zip(blocks, plain, strict=True)
    )


def _cost(measured: dict[str, Any]) -> tuple[str, str]:
    return f"{measured['cpu_s_per_million']:.0f}", f"{measured['peak_mb']:.0f} MB"


def picture() -> str:
    """Bars of events per second: Tailrace, and the bare reader beside it in the same run."""
    bars = [
        (f"{kind}, {d['shape']}", name, rate, own)
        for kind, found, bare, bare_name in (
            ("Postgres", result("latest"), "pg_recvlogical_events_per_s", "pg_recvlogical to /dev/null"),
            ("MongoDB", result("mongo"), "watch_events_per_s", "pymongo's watch, counting only"),
        )
        for d in found["drain"]
        for name, rate, own in (("Tailrace to Kafka", d["events_per_s"], True), (bare_name, d[bare], False))
    ]
    width, left, row = 800, 270, 22
    scale = (width - left - 240) / max(rate for _, _, rate, _ in bars)
    lines, y = [], 34
    for number, (label, name, rate, own) in enumerate(bars):
        if number % 2 == 0:
            y += 10
            lines.append(f'<text class="label" x="{left - 10}" y="{y + row}" text-anchor="end">{label}</text>')
        kind, length = "own" if own else "bare", round(rate * scale)
        lines += [
            f'<rect class="{kind}" x="{left}" y="{y}" width="{length}" height="{row - 4}"/>',
            f'<text x="{left + length + 6}" y="{y + 13}"><tspan class="label">{count(rate)}</tspan> {name}</text>',
        ]
        y += row
    style = (
        "text{font:12px system-ui,sans-serif;fill:#57606a}.label{fill:#24292f;font-weight:600}"
        ".own{fill:#0969da}.bare{fill:#afb8c1}"
        "@media(prefers-color-scheme:dark){text{fill:#8b949e}.label{fill:#e6edf3}.own{fill:#58a6ff}.bare{fill:#484f58}}"
    )
    title = "Events per second, exactly once and validated, on 2 cores that also run the servers"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 12}" width="{width}" role="img">',
            f"<title>{title}</title><style>{style}</style>",
            f'<text class="label" x="0" y="18">{title}</text>',
            *lines,
            "</svg>",
            "",
        ]
    )
