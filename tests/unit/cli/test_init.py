"""`tailrace init` writes files that load without changes, and overwrites only with --force."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tailrace.cli import main
from tailrace.config.load import load_pipeline
from tailrace.routing.folder import load_topics
from tailrace.sql_names import split_table


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(["init", *arguments])
    return caught.value.code


def snapshot(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("name", "table", "variable"),
    [
        ("orders", "public.outbox", "ORDERS_DB_PASSWORD"),
        ("my-orders_2", "shop.events", "MY_ORDERS_2_DB_PASSWORD"),
        ("2nd", 'shop."Out.Box"', "_2ND_DB_PASSWORD"),
        ("x" * 48, "outbox", "X" * 48 + "_DB_PASSWORD"),
    ],
)
def test_the_files_load(tmp_path: Path, name: str, table: str, variable: str) -> None:
    assert run(str(tmp_path / "new"), "--name", name, "--table", table) == 0
    pipeline = load_pipeline(tmp_path / "new" / f"{name}.yaml", {variable: "init-s3cret"})
    assert pipeline.name == name
    assert "init-s3cret" in pipeline.source.postgres.reveal()
    assert split_table(pipeline.source.table)[1] in table
    assert pipeline.source.order_by == ("created_at", "id")
    assert pipeline.schemas is not None
    assert pipeline.topics.folder is not None
    assert [spec.topic for spec in load_topics(pipeline.topics.folder)] == [f"shop.{name}"]
    schema = json.loads((pipeline.schemas.folder / "OrderPlaced" / "1.json").read_text())
    assert schema["title"] == "OrderPlaced"
    sql = (tmp_path / "new" / f"{name}.sql").read_text()
    for part in (
        "CREATE TABLE",
        '"created_at"',
        "CREATE ROLE",
        f'CREATE PUBLICATION "{pipeline.source.publication}"',
    ):
        assert part in sql


@pytest.mark.parametrize(
    ("name", "collection", "variable"),
    [
        ("orders", "shop.outbox", "ORDERS_DB_PASSWORD"),
        ("my-orders_2", "shop.out.box", "MY_ORDERS_2_DB_PASSWORD"),
        ("2nd", "Shop.Out'box", "_2ND_DB_PASSWORD"),
    ],
)
def test_the_files_for_mongo_load(tmp_path: Path, name: str, collection: str, variable: str) -> None:
    assert run(str(tmp_path), "--name", name, "--mongo", "--collection", collection) == 0
    pipeline = load_pipeline(tmp_path / f"{name}.yaml", {variable: "init-s3cret"})
    assert pipeline.source.mongo is not None
    assert "init-s3cret" in pipeline.source.mongo.reveal()
    assert (pipeline.source.collection, pipeline.source.order_by) == ((collection,), ("created_at", "_id"))
    assert pipeline.outbox.layout == "document"
    assert pipeline.topics.folder is not None
    assert [spec.topic for spec in load_topics(pipeline.topics.folder)] == [f"shop.{name}"]
    commands = (tmp_path / f"{name}.js").read_text()
    assert f"createRole: {json.dumps('tailrace_' + name.replace('-', '_'))}" in commands
    assert "passwordPrompt()" in commands
    assert not (tmp_path / f"{name}.sql").exists()


@pytest.mark.parametrize(
    ("layout", "table", "order", "type_name"),
    [
        ("streams", "public.outbox_events", ("created_at", "id"), "order.placed"),
        ("storage", "public.storage_outbox", ("created_at", "outbox_id"), "OrderPlaced"),
    ],
)
def test_the_files_of_a_layout_load_and_route_its_events(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    layout: str,
    table: str,
    order: tuple[str, ...],
    type_name: str,
) -> None:
    assert run(str(tmp_path), "--layout", layout) == 0
    monkeypatch.setenv("ORDERS_DB_PASSWORD", "x")
    pipeline = load_pipeline(tmp_path / "orders.yaml")
    assert (pipeline.outbox.layout, pipeline.source.table, pipeline.source.order_by) == (layout, table, order)
    assert pipeline.schemas is not None
    assert (pipeline.schemas.folder / type_name / "1.json").exists()
    assert f'"{table.partition(".")[2]}" (' in (tmp_path / "orders.sql").read_text()
    capsys.readouterr()
    arguments = ["--type", type_name, *(["--aggregate", "order"] if layout == "storage" else []), "--json", "--offline"]
    with pytest.raises(SystemExit) as caught:
        main(["route", "explain", str(tmp_path / "orders.yaml"), *arguments])
    output = capsys.readouterr().out
    assert (caught.value.code, json.loads(output)["topic"]) == (0, "shop.orders"), output


@pytest.mark.parametrize("layout", ["streams", "storage"])
def test_the_commented_settings_of_a_layout_are_valid(tmp_path: Path, layout: str) -> None:
    run(str(tmp_path), "--layout", layout)
    file = tmp_path / "orders.yaml"
    lines = re.sub(r"^( *)# ( *[\w.]+:( .*)?)$", r"\1\2", file.read_text(), flags=re.MULTILINE)
    (tmp_path / "kafka").write_text("password=kafka-s3cret\n")
    file.write_text(lines.replace("/run/secrets/kafka", "kafka"))
    pipeline = load_pipeline(file, {"ORDERS_DB_PASSWORD": "x"})
    expected = {"streams": "payload#/team_id", "storage": "aggregate_id"}[layout]
    assert (pipeline.topics.template, pipeline.outbox.columns.key) == ("{stream}", expected)


def test_a_layout_chooses_the_database(tmp_path: Path) -> None:
    assert run(str(tmp_path), "--layout", "document", "--name", "a") == 0
    assert (tmp_path / "a.js").exists()
    assert run(str(tmp_path), "--layout", "document", "--table", "shop.outbox", "--name", "b") == 0
    assert '"locked_until" timestamptz' in (tmp_path / "b.sql").read_text()
    assert run(str(tmp_path), "--layout", "debezium", "--mongo", "--name", "c") == 0
    assert load_pipeline(tmp_path / "c.yaml", {"C_DB_PASSWORD": "x"}).outbox.layout == "debezium"


def test_the_commented_settings_for_mongo_are_valid(tmp_path: Path) -> None:
    run(str(tmp_path), "--mongo")
    file = tmp_path / "orders.yaml"
    lines = re.sub(r"^( *)# ( *[\w.]+:( .*)?)$", r"\1\2", file.read_text(), flags=re.MULTILINE)
    (tmp_path / "kafka").write_text("password=kafka-s3cret\n")
    file.write_text(lines.replace("/run/secrets/kafka", "kafka"))
    pipeline = load_pipeline(file, {"ORDERS_DB_PASSWORD": "x"})
    assert (pipeline.topics.template, pipeline.outbox.columns.key) == ("{stream}", "entity_id")


def test_the_commented_settings_are_valid(tmp_path: Path) -> None:
    """A user who removes a comment sign must get a file that still loads."""
    run(str(tmp_path))
    file = tmp_path / "orders.yaml"
    lines = re.sub(r"^( *)# ( *[\w.]+:( .*)?)$", r"\1\2", file.read_text(), flags=re.MULTILINE)
    (tmp_path / "kafka").write_text("password=kafka-s3cret\n")
    file.write_text(lines.replace("/run/secrets/kafka", "kafka"))
    pipeline = load_pipeline(file, {"ORDERS_DB_PASSWORD": "x"})
    assert (pipeline.source.failover, pipeline.source.on_change) == (True, "halt")
    assert pipeline.topics.template == "outbox.event.{aggregate}"
    expected = {"security.protocol": "SASL_SSL", "sasl.password": "kafka-s3cret"}
    assert pipeline.kafka.client_settings() == expected


@pytest.mark.parametrize(("options", "script"), [([], "psql -f "), (["--mongo"], "mongosh -f ")])
def test_prints_three_next_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], script: str
) -> None:
    run(str(tmp_path), *options)
    output = capsys.readouterr().out
    assert re.findall(r"^  (\d)\. ", output, flags=re.MULTILINE) == ["1", "2", "3"]
    for part in (script, "ORDERS_DB_PASSWORD", "tailrace check", "tailrace run"):
        assert part in output


def test_overwrites_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "orders.sql").write_text("mine")
    assert run(str(tmp_path)) == 2
    assert snapshot(tmp_path) == {"orders.sql": "mine"}
    assert "--force" in capsys.readouterr().err
    assert run(str(tmp_path), "--force") == 0
    assert "CREATE TABLE" in snapshot(tmp_path)["orders.sql"]


def test_a_second_pipeline_in_one_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pipeline has its own rule, so that the two do not contradict each other; a changed schema is kept."""
    assert run(str(tmp_path), "--name", "orders") == 0
    schema = tmp_path / "schemas" / "OrderPlaced" / "1.json"
    schema.write_text('{"type": "object"}')
    assert run(str(tmp_path), "--name", "billing") == 0
    assert f"kept  {schema}" in capsys.readouterr().out
    assert schema.read_text() == '{"type": "object"}'
    for name in ("orders", "billing"):
        pipeline = load_pipeline(tmp_path / f"{name}.yaml", {f"{name.upper()}_DB_PASSWORD": "x"})
        assert pipeline.source.start == "beginning"
        assert pipeline.topics.folder is not None
        monkeypatch.setenv(f"{name.upper()}_DB_PASSWORD", "x")
        arguments = ["--type", "OrderPlaced", "--aggregate", "order", "--key", "o-1", "--json"]
        with pytest.raises(SystemExit) as caught:
            main(["route", "explain", str(tmp_path / f"{name}.yaml"), *arguments])
        assert caught.value.code == 0
        assert json.loads(capsys.readouterr().out)["topic"] == f"shop.{name}"
    assert run(str(tmp_path), "--name", "billing") == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--name", "Orders!"], "--name orders"),
        (["--table", "a.b.c"], "schema.table"),
        (["--mongo", "--collection", "outbox"], "--collection shop.outbox"),
        (["--mongo", "--name", "Orders!"], "--name orders"),
        (["--name", ""], "--name"),
        (["--layout", "tables"], "debezium, document, streams, storage"),
        (["--layout", "streams", "--mongo"], "--layout document"),
        (["--mongo", "--table", "public.outbox"], "--collection"),
    ],
)
def test_refuses_bad_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert run(str(tmp_path), *arguments) == 2
    assert expected in capsys.readouterr().err
    assert snapshot(tmp_path) == {}


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(str(tmp_path / "file" / "below")) == 2
    assert "cannot be written" in capsys.readouterr().err
