"""`tailrace outbox guard` takes table, columns, schemas and limit from a settings file or from options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.cli import main

PIPELINE = """
pipeline: orders
source: {postgres: "postgresql://localhost/shop", table: shop.events}
outbox: {columns: {type: kind, version: version}}
schemas: {folder: schemas, unknown: UNKNOWN}
topics: {template: "{aggregate}"}
kafka: {bootstrap: "localhost:9092"}
limits: {payload_bytes: 777}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two versions of a schema, as the current one."""
    monkeypatch.chdir(tmp_path)
    subject = tmp_path / "schemas" / "OrderPlaced"
    subject.mkdir(parents=True)
    for version, required in enumerate((["order"], ["order", "total"]), start=1):
        (subject / f"{version}.json").write_text(json.dumps({"type": "object", "required": required}))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["outbox", "guard", *arguments])
    out, error = capsys.readouterr()
    assert caught.value.code == code, error
    return out + error


def test_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = run(capsys, "--layout", "document", "--table", 'shop."Out.Box"', "--schemas", "schemas", "--max-bytes", "99")
    for part in ('ON "shop"."Out.Box"', 'NEW."event_type"', "> 99", "-> 'total'", "there is no schema for"):
        assert part in sql


def test_without_schemas_payloads_are_only_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = run(capsys)
    assert "> 1000000" in sql
    assert "jsonb_typeof" not in sql
    assert "no schema" not in sql


@pytest.mark.parametrize(("unknown", "checked"), [("dead_letter", True), ("pass", False)])
def test_a_settings_file(folder: Path, capsys: pytest.CaptureFixture[str], unknown: str, checked: bool) -> None:
    (folder / "orders.yaml").write_text(PIPELINE.replace("UNKNOWN", unknown))
    sql = run(capsys, "orders.yaml")
    for part in ('ON "shop"."events"', 'NEW."kind"', "> 777"):
        assert part in sql
    # Rows name their version: only what all versions demand is checked, and nothing if unknown versions pass.
    assert ("-> 'order'" in sql) is checked
    assert "-> 'total'" not in sql
    assert ("no schema for the event type" in sql) is checked


def test_the_usual_table_of_a_layout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 'ON "public"."outbox_events"' in run(capsys, "--layout", "streams")


def test_removal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = run(capsys, "--drop")
    assert sql.startswith("DROP TRIGGER IF EXISTS")
    assert "CREATE" not in sql


@pytest.mark.parametrize("arguments", [["--layout", "other"], ["--payload-type", "bytea"], ["--table", "a.b.c"]])
def test_wrong_options_are_refused(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert "remedy" in run(capsys, *arguments, code=2)


def test_a_pipeline_of_mongodb_has_no_guard(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "users.yaml").write_text(
        PIPELINE.replace("UNKNOWN", "pass").replace(
            'postgres: "postgresql://localhost/shop", table: shop.events', 'mongo: "mongodb://h/", collection: a.b'
        )
    )
    assert "MongoDB" in run(capsys, "users.yaml", code=2)
