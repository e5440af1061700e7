"""Tests of `tailrace outbox ddl`: what is printed for each layout, and bad options."""

from __future__ import annotations

import re

import pytest

from tailrace.cli import main
from tailrace.outbox.ddl import outbox_ddl
from tailrace.outbox.specs import LAYOUTS


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as caught:
        main(["outbox", "ddl", *arguments])
    printed = capsys.readouterr()
    return caught.value.code, printed.out + printed.err


@pytest.mark.parametrize("layout", LAYOUTS)
def test_prints_the_sql_of_a_layout(capsys: pytest.CaptureFixture[str], layout: str) -> None:
    options = ["--table", "shop.events", "--role", "reader", "--name", "my-pipeline"]
    code, printed = run(capsys, "--layout", layout, *options)
    assert code == 0
    assert printed == outbox_ddl(layout, "shop.events", "reader", "tailrace_my_pipeline")


def test_prints_a_table_by_day(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(capsys, "--by-day")
    assert code == 0
    assert 'PRIMARY KEY ("id", "created_at")' in printed
    assert ') PARTITION BY RANGE ("created_at");' in printed
    assert "ATTACH PARTITION" in printed


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], []),
        (["--marks", "watermark"], ['CREATE ON SCHEMA "public"']),
        (
            ["--layout", "streams", "--marks", "rows"],
            [
                'CREATE ON SCHEMA "public"',
                'UPDATE ("processed", "processed_at", "error")\n    ON TABLE "public"."outbox_events"',
            ],
        ),
        (
            ["--layout", "storage", "--marks", "rows"],
            [
                'CREATE ON SCHEMA "public"',
                'UPDATE ("delivery_status", "delivery_attempts", "first_attempt_at", "last_attempt_at", "delivered_at")'
                '\n    ON TABLE "public"."storage_outbox"',
                'SELECT, INSERT, UPDATE ON TABLE "public"."storage_outbox_dlq"',
            ],
        ),
    ],
    ids=["none", "watermark", "streams", "storage"],
)
def test_prints_the_grants_for_delivery_marks(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: list[str]
) -> None:
    code, printed = run(capsys, "--role", "reader", *arguments)
    assert code == 0
    granted = re.findall(r'^GRANT (.*?) TO "reader";', printed, flags=re.MULTILINE | re.DOTALL)
    assert granted[2:] == expected
    assert ("nothing here may write to it" in printed) == ("rows" not in arguments)
    assert max(map(len, printed.splitlines())) <= 120


def test_prints_commands_for_mongosh(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(capsys, "--layout", "document", "--collection", "shop.events", "--role", "reader")
    assert code == 0
    for part in ("mongosh", 'createIndexes: "events"', 'createUser: "reader"', 'createRole: "tailrace_orders"'):
        assert part in printed


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--layout", "tables"], "Choose one of"),
        (["--layout", "storage", "--collection", "shop.outbox"], "a table in Postgres"),
        (["--table", "a.b.c"], "schema.table"),
        (["--collection", "shop.outbox", "--by-day"], "MongoDB has no partitions"),
        (["--name", "Orders!"], "--name orders"),
        (["--marks", "all"], "Choose one of none, watermark, rows"),
        (["--marks", "rows"], "the layout debezium has none"),
        (["--collection", "shop.outbox", "--layout", "debezium", "--marks", "rows"], "the layout debezium has none"),
        (["--layout", "document", "--marks", "watermark"], "for Postgres"),
    ],
)
def test_refuses_bad_options(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    code, printed = run(capsys, *arguments)
    assert code == 2
    assert expected in printed
