"""`tailrace schemas list` and `check`, which need no server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli import main

OPEN = {"type": "object", "properties": {"a": {"type": "string"}}}
NEEDS_MORE = {"type": "object", "required": ["b"], "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
OFFERS_MORE = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}


def write(folder: Path, **files: Any) -> Path:
    for name, document in files.items():
        subject, _, number = name.rpartition("_")
        (folder / subject).mkdir(exist_ok=True)
        (folder / subject / f"{number}.json").write_text(json.dumps(document, indent=1))
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["schemas", *arguments])
    printed = capsys.readouterr()
    return caught.value.code, printed.out, printed.err


def test_a_compatible_change_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, Order_1=OPEN, Order_2=OFFERS_MORE)
    code, out, _ = run(capsys, "check", "--folder", str(tmp_path))
    assert (code, out) == (0, "2 schemas: none with an incompatible change.\n")


def test_an_incompatible_change_is_reported_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, Order_1=OPEN, Order_2=NEEDS_MORE)
    code, out, _ = run(capsys, "check", "--folder", str(tmp_path))
    line = 1 + json.dumps(NEEDS_MORE, indent=1).splitlines().index('  "b": {')
    assert code == 1
    assert f"{tmp_path}/Order/2.json:{line} (#/properties/b) is required" in out
    assert "compatibility.yaml" in out
    code, out, _ = run(capsys, "check", "--folder", str(tmp_path), "--json")
    report = json.loads(out)
    assert (code, report["ok"], report["conflicts"][0]["problems"][0]["line"]) == (1, False, line)


@pytest.mark.parametrize(
    ("modes", "code"),
    [
        ("default: NONE", 0),
        ("default: BACKWARD", 1),
        ("default: FORWARD", 0),
        ("default: FULL", 1),
        ("{default: FULL, subjects: {Order: NONE}}", 0),
        ("{default: NONE, subjects: {Order: BACKWARD_TRANSITIVE}}", 1),
    ],
)
def test_the_mode_decides_which_changes_are_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], modes: str, code: int
) -> None:
    write(tmp_path, Order_1=OPEN, Order_2=NEEDS_MORE)
    (tmp_path / "compatibility.yaml").write_text(modes)
    assert run(capsys, "check", "--folder", str(tmp_path))[0] == code


def test_a_change_can_be_allowed_for_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, Order_1=OPEN, Order_2=NEEDS_MORE, User_1=OPEN, User_2=NEEDS_MORE)
    code, out, _ = run(capsys, "check", "--folder", str(tmp_path), "--allow", "Order")
    assert (code, "Order/2.json" in out, "--allow User" in out) == (1, False, True)
    assert run(capsys, "check", "--folder", str(tmp_path), "--allow", "Order", "--allow", "User")[0] == 0
    code, _, error = run(capsys, "check", "--folder", str(tmp_path), "--allow", "Oder")
    assert (code, "--allow: there is no subject Oder" in error) == (2, True)


def test_strict_mode_includes_undeclared_properties(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, Order_1=OPEN, Order_2=OFFERS_MORE)
    (tmp_path / "compatibility.yaml").write_text("strict: true")
    assert run(capsys, "check", "--folder", str(tmp_path))[0] == 1


def test_only_transitive_modes_compare_more_than_one_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}}
    dropped = {"type": "object", "properties": {"a": {"type": "string"}}}
    write(tmp_path, Order_1=narrow, Order_2=dropped, Order_3=OFFERS_MORE)
    assert run(capsys, "check", "--folder", str(tmp_path))[0] == 0
    (tmp_path / "compatibility.yaml").write_text("default: BACKWARD_TRANSITIVE")
    assert run(capsys, "check", "--folder", str(tmp_path))[0] == 1


def test_another_kind_of_schema_is_incompatible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, Order_1=OPEN)
    (tmp_path / "Order/2.avsc").write_text('"string"')
    code, out, _ = run(capsys, "check", "--folder", str(tmp_path))
    assert code == 1
    assert "is of the kind avro, and version 1 of the kind json" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("default: SIDEWAYS", "compatibility.yaml:1: default must be one of NONE"),
        ("a: 1", "compatibility.yaml:1: a is not a setting"),
        ("\nsubjects: {Order: 3}", "compatibility.yaml:2: subjects.Order must be one of"),
        ("strict: maybe", "compatibility.yaml:1: strict must be true or false"),
        ("[1]", "the file must be settings"),
        ("subjects: {Oder: FULL}", "there is no subject Oder"),
        ("{", "compatibility.yaml:1 is not YAML"),
    ],
)
def test_invalid_modes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    write(tmp_path, Order_1=OPEN)
    (tmp_path / "compatibility.yaml").write_text(text)
    code, _, err = run(capsys, "check", "--folder", str(tmp_path))
    assert code == 2
    assert expected in err


def test_list_names_every_version_with_its_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, Order_1={"properties": {"to": {"$ref": "../Address/1.json"}}}, Address_1=OPEN)
    code, out, _ = run(capsys, "list", "--folder", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out)["schemas"] == [
        {"subject": "Address", "version": "1", "kind": "json", "mode": "BACKWARD", "references": None},
        {"subject": "Order", "version": "1", "kind": "json", "mode": "BACKWARD", "references": "Address 1"},
    ]


def test_versions_are_compared_with_their_numeric_neighbours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1.10.0 follows 1.9.0, although it sorts before it as text."""
    narrow, wide = {"type": "integer"}, {"type": "number"}
    for version, document in {"1.0.0": narrow, "1.9.0": wide, "1.10.0": narrow}.items():
        (tmp_path / "Order").mkdir(exist_ok=True)
        (tmp_path / "Order" / f"{version}.json").write_text(json.dumps(document))
    code, out, _ = run(capsys, "list", "--folder", str(tmp_path), "--json")
    assert [row["version"] for row in json.loads(out)["schemas"]] == ["1.0.0", "1.9.0", "1.10.0"]
    code, out, _ = run(capsys, "check", "--folder", str(tmp_path), "--json")
    (conflict,) = json.loads(out)["conflicts"]
    assert (code, conflict["file"], conflict["problems"][0]["earlier"]) == (
        1, str(tmp_path / "Order/1.10.0.json"), "1.9.0",
    )  # fmt: skip


@pytest.mark.parametrize("command", ["check", "list", "models"])
def test_a_file_that_is_not_named_by_a_version_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    write(tmp_path, Order_1=OPEN)
    (tmp_path / "Order" / "1.0.json").write_text("{}")
    code, _, err = run(capsys, command, "--folder", str(tmp_path))
    assert code == 2
    assert "SchemaVersionInvalid: " in err


def test_a_pipeline_without_a_folder_gets_an_error_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text("{pipeline: o, source: {postgres: 'host=x', table: t}, kafka: {bootstrap: 'x:1'}}")
    code, _, err = run(capsys, "check", str(file))
    assert (code, "names no schema folder" in err) == (2, True)
    code, _, err = run(capsys, "register", str(file))
    assert code == 2
