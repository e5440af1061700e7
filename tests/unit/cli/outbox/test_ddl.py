"""Tests of `tailrace outbox ddl`: what is printed for each layout, and bad options."""

from __future__ import annotations

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
    ],
)
def test_refuses_bad_options(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    code, printed = run(capsys, *arguments)
    assert code == 2
    assert expected in printed
