"""The pure parts of `make race`: /proc, rates, percentiles, steps, and the picture."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.race.arrivals import Arrivals
from benchmarks.race.growth import BYTES, PIPELINES, SIZES, TRANSACTIONS, steps
from benchmarks.race.latency import Sample, stamp_of, summary
from benchmarks.race.outboxes import MongoOutbox, PostgresOutbox
from benchmarks.race.picture import picture, shown
from benchmarks.race.rows import Row, grouped, rows, table
from benchmarks.race.usage import TICK, cpu_of, cpu_seconds, peak_mb, peak_of
from tools import race_page

STAT = "4242 (a (strange) name) S 1 4242 4242 0 -1 4194304 1 0 0 0 150 50 7 7 20 0 9 0 100 1000 10"
MEASURED = [
    *rows("postgres", "100 a transaction", "pg_recvlogical", events_per_s=118_814),
    *rows("postgres", "100 a transaction", "Tailrace", events_per_s=68_655, peak_mb=90.4),
    *rows("postgres", "100 a transaction", "Debezium, exactly once", events_per_s=20_100, peak_mb=1158),
]


def result(**phases: list[Row]) -> dict[str, Any]:
    shared = {
        "at": "2026-11-19T00:00:00+00:00",
        "events": 200_000,
        "versions": {"debezium": "3.6.1.Final"},
        "settings": {"debezium": {"java": ["-Xmx1g"], "worker": {}, "connector": {"max.batch.size": "8192"}}},
    }
    return {name: {**shared, "rows": [asdict(row) for row in found]} for name, found in phases.items()}


def test_cpu_and_peak_memory_are_read_from_proc() -> None:
    assert cpu_of(STAT) == 200 / TICK
    assert peak_of("Name:\tjava\nVmPeak:\t  9 kB\nVmHWM:\t  2048 kB\n") == 2.0
    with pytest.raises(ValueError, match="VmHWM"):
        peak_of("Name:\tkthreadd\n")
    assert cpu_seconds([os.getpid()]) > 0
    assert peak_mb([os.getpid(), os.getpid()]) == pytest.approx(2 * peak_mb([os.getpid()]), rel=0.05)


def test_a_rate_is_that_from_the_beginning_and_a_warm_one_that_of_the_second_half() -> None:
    slow_then_fast = [1000, 2000, 3000, 4000, 4010, 4020, 4030, 4040]
    arrivals = Arrivals(slow_then_fast, 0)
    assert arrivals.rate(began=40) == 2.0
    assert arrivals.warm_rate == pytest.approx(4000 / 30)
    assert Arrivals([5], 0).rate(began=5) == 1000


def test_a_latency_leaves_out_the_first_quarter_and_names_the_rate_of_the_commits() -> None:
    warm = [Sample(10.0 * number, 10.0 * number + 1 + number % 100) for number in range(100, 400)]
    cold = [Sample(10.0 * number, 10.0 * number + 900) for number in range(100)]
    found = summary([*warm, *cold])
    assert found["p50_ms"] == pytest.approx(50.5, abs=1)
    assert found["p99_ms"] == pytest.approx(100, abs=1)
    assert found["rate"] == pytest.approx(100)
    with pytest.raises(SystemExit, match="too few"):
        summary(warm[:20])


def test_the_time_of_a_transaction_is_its_note() -> None:
    assert stamp_of(b'{"note": "0000001763587200123.456"}') == 1763587200123.456


def test_the_steps_of_the_growth() -> None:
    found = list(steps(200_000, PostgresOutbox))
    assert len(found) == len(SIZES) + len(TRANSACTIONS) + len(PIPELINES)
    assert sum(step.end for step in found) == 6
    assert max(step.shape.total * step.size for step in found if step.size > SIZES[0]) <= BYTES
    assert [step.shape.events for step in found[4:8]] == list(TRANSACTIONS)
    assert {step.shape.events for step in steps(200_000, MongoOutbox)} == {1, 100, 10_000}
    assert max(step.shape.total for step in steps(1000, PostgresOutbox)) == 500


def test_rows_are_grouped_and_printed_by_contender() -> None:
    assert grouped(MEASURED)["postgres", "100 a transaction", "Tailrace"] == {"events_per_s": 68_655, "peak_mb": 90.4}
    assert table(MEASURED).splitlines()[1].split()[-4:] == ["events_per_s", "68,655.0", "peak_mb", "90.4"]


def test_the_picture_has_a_bar_for_each_row_in_proportion() -> None:
    drawn = picture(result(drain=MEASURED))
    svg = ET.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    bars = [(bar.get("class"), int(bar.get("width", "0"))) for bar in svg.iter(f"{space}rect")]
    assert [kind for kind, _ in bars] == ["bare", "own", "other", "own", "other"]
    assert bars[1][1] / bars[0][1] == pytest.approx(68_655 / 118_814, abs=0.01)
    assert "118,814" not in drawn
    assert "119,000" in drawn
    assert "MongoDB" not in drawn


def test_there_is_no_picture_without_a_result() -> None:
    assert picture({}) == picture(result(growth=MEASURED)) == ""
    assert [shown(value) for value in (0.04, 9.94, 10.4, 1158, 118_814)] == ["0.0", "9.9", "10", "1,160", "119,000"]


def test_readme_shows_the_picture_once_and_only_if_there_is_one() -> None:
    without = f"# Tailrace\n\n{race_page.AFTER}\n## Features\n"
    with_picture = race_page.readme(without, "<svg/>")
    assert with_picture.count("race.svg") == 1
    assert race_page.readme(with_picture, "<svg/>") == with_picture
    assert race_page.readme(with_picture, "") == race_page.readme(without, "") == without


def test_the_page_has_a_table_of_each_phase_and_the_settings() -> None:
    page = race_page.tables(result(drain=MEASURED))
    assert "| Postgres | 100 a transaction | Tailrace | 68,700 | – |" in page
    assert "`max.batch.size=8192`" in page
    assert "**start**" not in page
    assert "No result" in race_page.tables({})
