"""The operations of the API cover the commands: every command and parameter is offered, or withheld for a reason."""

from __future__ import annotations

import json

import pytest
import typer

from tailrace.api.v1.operation import PIPELINE
from tailrace.cli import commands
from tailrace.cli.operations import COMMANDS, WITHHELD, find_command, operation, operations, run_for_worker

OFFERED_GROUPS = ("position", "dlq", "replay", "recover", "topics", "route", "schemas", "archive", "retention")
NOT_OFFERED = {
    "dlq watch": "it has no end",
    "schemas models": "it writes a file for developers",
    "schemas asyncapi": "it writes a document for developers",
    "archive write": "it is run by a timer, with access to the archive",
    "retention run": "it has no end",
    "archive expire": "it is run by a timer, with access to the archive",
}


def test_every_command_of_the_groups_is_offered_or_known_not_to_be() -> None:
    root = typer.main.get_command(commands.app)
    offered = {each.name for each in COMMANDS}
    for group in OFFERED_GROUPS:
        found = root.get_command(None, group)  # type: ignore[attr-defined]
        for name in found.commands:
            assert (f"{group} {name}" in offered) != (f"{group} {name}" in NOT_OFFERED), f"{group} {name}"


def test_every_parameter_is_offered_or_withheld() -> None:
    for each in operations():
        offered = {given.option or given.name for given in each.parameters}
        for found in find_command(each.name).params:
            is_pipeline = found.name in ("file", "files")
            known = found.opts[0] in offered or found.name in WITHHELD or is_pipeline
            assert known, f"{each.name} {found.opts}"
        assert len({given.name for given in each.parameters}) == len(each.parameters), each.name


def test_no_parameter_is_a_path() -> None:
    contents = {
        (each.name, given.name) for each in operations() for given in each.parameters if given.kind == "content"
    }
    assert contents == {("dlq redrive", "payload"), ("replay apply", "plan"), ("replay diff", "plan")}
    assert not any(given.name in WITHHELD for each in operations() for given in each.parameters)


def test_clients_cannot_name_files_modules_or_servers_of_the_worker() -> None:
    never = {"bootstrap", "kafka_setting", "folder", "consumers", "projection", "output", "settings", "edit"}
    assert never <= WITHHELD.keys()
    assert not never & {given.name for each in operations() for given in each.parameters}


def test_types_defaults_and_bounds_come_from_the_command() -> None:
    limit = operation("dlq list").parameter("limit")
    assert (limit.kind, limit.default, limit.minimum, limit.maximum) == ("integer", 100, 1, 10_000)
    types = operation("dlq list").parameter("type")
    assert types.repeatable
    assert not types.required
    assert operation("position reset").parameter("to").required
    assert operation("verify").parameter("wait").kind == "number"
    assert operation("check").parameter("offline").kind == "boolean"


def test_operations_that_take_long_or_change_something_are_posted() -> None:
    for each in operations():
        assert (each.method == "POST") == (each.long or each.confirms or each.name in ("replay plan",)), each.name


def test_every_operation_can_print_json() -> None:
    for each in operations():
        assert "as_json" in {found.name for found in find_command(each.name).params}, each.name


def test_the_order_of_arguments() -> None:
    assert operation("dlq redrive").arguments == (PIPELINE, "ids")
    assert operation("trace").arguments == ("event_id", PIPELINE)
    assert operation("replay apply").arguments == ("plan",)
    assert operation("replay apply").settings_option == "--settings"


def test_descriptions_are_without_command_lines() -> None:
    for each in operations():
        assert each.summary
        assert "tailrace position reset" not in each.description
        assert "\b" not in each.description


def test_a_worker_runs_its_commands_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TAILRACE_WORKER", "http://127.0.0.1:1")
    assert run_for_worker(["check", "--offline", "--json", "--", "/nowhere/orders.yaml"]) == 1
    assert "does not exist" in json.loads(capsys.readouterr().out)["checks"][0]["found"]
