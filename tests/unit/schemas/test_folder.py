"""The folder registry: which files count, which are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import SchemaError
from tailrace.schemas.folder import load_folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_versions_flat_files_and_types_with_dots(tmp_path: Path) -> None:
    files = ["OrderPlaced/1.json", "OrderPlaced/12.json", "shop.order.paid/2.json", "shop.refund.json"]
    write(tmp_path, dict.fromkeys(files, "{}") | {".gitkeep": "", "OrderPlaced/.note": "x"})
    found = {(contract.subject, contract.version, contract.file) for contract in load_folder(tmp_path)}
    assert found == {
        ("OrderPlaced", 1, str(tmp_path / "OrderPlaced/1.json")),
        ("OrderPlaced", 12, str(tmp_path / "OrderPlaced/12.json")),
        ("shop.order.paid", 2, str(tmp_path / "shop.order.paid/2.json")),
        ("shop.refund", 1, str(tmp_path / "shop.refund.json")),
    }


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "T/readme.txt",
        "T/v1.json",
        "T/0.json",
        "T/01.json",
        "T/1.JSON",
        "T/1.json~",
        "T/1/2.json",
        "T/-1.json",
        "T/1.5.json",
        "T/١.json",
        "T.yaml",
    ],
)
def test_files_of_other_names_are_refused_by_name(tmp_path: Path, name: str) -> None:
    write(tmp_path, {name: "{}"})
    with pytest.raises(SchemaError) as caught:
        load_folder(tmp_path)
    assert str(tmp_path / name).startswith(caught.value.what.partition(" is not")[0])
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"maximum": 123456789012345678901234567890}', "\ufeff{}"])
def test_a_file_that_is_not_json_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"T/1.json": text})
    with pytest.raises(SchemaError, match=r"T/1\.json is not JSON"):
        load_folder(tmp_path)


def test_a_schema_may_speak_of_nul(tmp_path: Path) -> None:
    write(tmp_path, {"T/1.json": '{"pattern": "^[^\\u0000-\\u001f]*$"}'})
    contract = load_folder(tmp_path).find("T", "1")
    assert contract is not None
    assert not contract.is_valid("\t")


def test_an_unusable_schema_names_its_file(tmp_path: Path) -> None:
    write(tmp_path, {"T/1.json": "{}", "T/2.json": '{"type": 1}'})
    with pytest.raises(SchemaError, match=r"T/2\.json"):
        load_folder(tmp_path)


def test_a_flat_file_beside_a_folder_with_version_1(tmp_path: Path) -> None:
    write(tmp_path, {"T/1.json": "{}", "T.json": "{}"})
    with pytest.raises(SchemaError, match="twice"):
        load_folder(str(tmp_path))


def test_folders_that_are_missing_or_empty(tmp_path: Path) -> None:
    assert list(load_folder(tmp_path)) == []
    with pytest.raises(SchemaError, match="cannot be read"):
        load_folder(tmp_path / "absent")
    (tmp_path / "T").mkdir()
    with pytest.raises(SchemaError, match="holds no schema"):
        load_folder(tmp_path)
