"""Schema folders: which files are read, and which are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import SchemaError, SchemaVersionInvalid
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import Reference
from tailrace.schemas.folder import load_folder
from tailrace.schemas.line_numbers import line_of


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_versioned_files_flat_files_and_types_with_dots_are_read(tmp_path: Path) -> None:
    files = ["OrderPlaced/1.json", "OrderPlaced/12.json", "shop.order.paid/1.10.0.json", "shop.refund.json"]
    write(tmp_path, dict.fromkeys(files, "{}") | {".gitkeep": "", "OrderPlaced/.note": "x"})
    found = {(schema.subject, str(schema.version), schema.file) for schema in load_folder(tmp_path)}
    assert found == {
        ("OrderPlaced", "1", str(tmp_path / "OrderPlaced/1.json")),
        ("OrderPlaced", "12", str(tmp_path / "OrderPlaced/12.json")),
        ("shop.order.paid", "1.10.0", str(tmp_path / "shop.order.paid/1.10.0.json")),
        ("shop.refund", "1", str(tmp_path / "shop.refund.json")),
    }


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "T/readme.txt",
        "T/1.JSON",
        "T/1.json~",
        "T/1/2.json",
        "T.yaml",
    ],
)
def test_files_with_other_names_are_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, {name: "{}"})
    with pytest.raises(SchemaError) as caught:
        load_folder(tmp_path)
    assert str(tmp_path / name).startswith(caught.value.what.partition(" is not")[0])
    assert caught.value.remedy


@pytest.mark.parametrize(
    "version", ["v1", "0", "01", "-1", "1.5", "١", "1.0", "1.0.0-beta", "1.0.0.0", "01.0.0", "1..0", "0.0.0", "1 "]
)
def test_a_file_whose_name_is_not_a_version_is_refused(tmp_path: Path, version: str) -> None:
    write(tmp_path, {f"T/{version}.json": "{}"})
    with pytest.raises(SchemaVersionInvalid) as caught:
        load_folder(tmp_path)
    assert caught.value.what == f"{tmp_path}/T/{version}.json: {version!r} is not a version"
    assert "T/1.0.0.json" in caught.value.remedy


def test_the_highest_version_is_the_latest_and_both_spellings_are_known(tmp_path: Path) -> None:
    write(tmp_path, {f"T/{version}.json": f'{{"const": "{version}"}}' for version in ("1.10.0", "1.9.0", "1", "0.9.0")})
    schemas = load_folder(tmp_path)
    assert [str(version) for version in schemas.versions("T")] == ["0.9.0", "1", "1.9.0", "1.10.0"]
    latest, first = schemas.find("T", None), schemas.find("T", "1.0.0")
    assert latest is not None
    assert latest.is_valid("1.10.0")
    assert first is not None
    assert first is schemas.find("T", "1")
    assert schemas.find("T", "1.1.0") is None


def test_a_whole_number_and_its_long_form_are_one_version(tmp_path: Path) -> None:
    write(tmp_path, {"T/1.json": "{}", "T/1.0.0.json": "{}"})
    with pytest.raises(SchemaError, match="twice") as caught:
        load_folder(tmp_path)
    assert "N.0.0" in caught.value.why


@pytest.mark.parametrize(("stated", "is_right"), [("1.4.0", True), ("1.5.0", False), ("x", False)])
def test_a_stated_version_must_be_that_of_the_name(tmp_path: Path, stated: str, is_right: bool) -> None:
    write(tmp_path, {"T/1.4.0.json": f'{{"x-version": "{stated}"}}'})
    if is_right:
        load_folder(tmp_path)
        return
    with pytest.raises(SchemaVersionInvalid, match=r"T/1\.4\.0\.json:1 .*x-version is not 1\.4\.0"):
        load_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"maximum": 123456789012345678901234567890}', "\ufeff{}"])
def test_a_file_that_is_not_json_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"T/1.json": text})
    with pytest.raises(SchemaError, match=r"T/1\.json is not JSON"):
        load_folder(tmp_path)


def test_a_schema_may_contain_nul(tmp_path: Path) -> None:
    write(tmp_path, {"T/1.json": '{"pattern": "^[^\\u0000-\\u001f]*$"}'})
    schema = load_folder(tmp_path).find("T", "1")
    assert schema is not None
    assert not schema.is_valid("\t")


def test_an_unusable_schema_names_its_file(tmp_path: Path) -> None:
    write(tmp_path, {"T/1.json": "{}", "T/2.json": '{"type": 1}'})
    with pytest.raises(SchemaError, match=r"T/2\.json"):
        load_folder(tmp_path)


def test_a_flat_file_and_version_1_of_the_same_subject_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"T/1.json": "{}", "T.json": "{}"})
    with pytest.raises(SchemaError, match="twice"):
        load_folder(str(tmp_path))


def test_a_missing_folder_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    assert list(load_folder(tmp_path)) == []
    with pytest.raises(SchemaError, match="cannot be read"):
        load_folder(tmp_path / "absent")
    (tmp_path / "T").mkdir()
    with pytest.raises(SchemaError, match="holds no schema"):
        load_folder(tmp_path)


ADDRESS = '{"$id": "https://example.org/address", "$defs": {"zip": {"type": "string", "pattern": "^[0-9]+$"}}}'


def test_files_refer_to_each_other_by_path_and_by_id(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "Address/1.json": ADDRESS,
            "Flat.json": '{"type": "integer"}',
            "Order/1.json": '{"properties": {"zip": {"$ref": "../Address/1.json#/$defs/zip"}, '
            '"n": {"$ref": "../Flat.json"}, "same": {"$ref": "https://example.org/address#/$defs/zip"}}}',
        },
    )
    order = load_folder(tmp_path).find("Order", None)
    assert order is not None
    assert order.is_valid({"zip": "123", "n": 1, "same": "1"})
    for wrong in ({"zip": "x"}, {"n": "x"}, {"same": "x"}):
        assert not order.is_valid(wrong)
    assert order.references == (
        Reference("../Address/1.json", "Address", Version(1)),
        Reference("../Flat.json", "Flat", Version(1)),
        Reference("https://example.org/address", "Address", Version(1)),
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"T/1.json": '{\n "properties": {\n  "a": {"type": "strin"}}}'}, r"T/1\.json:3 \(#/properties/a/type\)"),
        (
            {"T/1.json": '{\n "allOf": [\n  {"$ref": "../U/1.json"}]}'},
            r"T/1\.json:3 .*'\.\./U/1\.json'.*does not exist",
        ),
        ({"T/1.json": '{\n "$ref": "https://a.b/c"}'}, r"T/1\.json:2 .*'https://a\.b/c'.*not registered"),
        ({"T/1.json": '{"pattern":\n "(?=a)"}'}, r"T/1\.json:1 \(#/pattern\): the pattern cannot be used"),
        ({"T/1.json": '{\n"$schema": "x"}'}, r"T/1\.json:2 \(#/\$schema\).*unknown draft"),
        (
            {"T/1.json": "{}", "T/1.avsc": '"string"'},
            r"version 1 of T is registered twice: .*T/1\.avsc and .*T/1\.json",
        ),
        ({"T/1.json": "{}", "T.json": "{}"}, r"version 1 of T is registered twice"),
        (
            {"A/1.json": '{"$id": "https://e.org/x"}', "B/1.json": '{\n"$id": "https://e.org/x"}'},
            r"B/1\.json:2 .*already the \$id of .*A/1\.json",
        ),
        ({"T/1.json": '{\n  "a": 1,\n  "a": 2}'}, r"T/1\.json is not JSON.*a"),
    ],
)
def test_all_problems_are_reported_together_with_file_and_line(
    tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    write(tmp_path, files)
    with pytest.raises(SchemaError, match=expected) as caught:
        load_folder(tmp_path)
    assert caught.value.remedy


def test_an_avro_schema_uses_the_types_of_other_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "Money/1.avsc": '{"type": "record", "name": "Money", "namespace": "shop", "fields": '
            '[{"name": "cents", "type": "long"}]}',
            "Order/1.avsc": '{"type": "record", "name": "Order", "namespace": "shop", "fields": '
            '[{"name": "total", "type": "Money"}, {"name": "tax", "type": ["null", "shop.Money"]}]}',
        },
    )
    order = load_folder(tmp_path).find("Order", "1")
    assert order is not None
    assert order.kind == "avro"
    assert order.is_valid({"total": {"cents": 5}, "tax": None})
    assert not order.is_valid({"total": 5, "tax": None})
    assert order.references == (Reference("shop.Money", "Money", Version(1)),)


def test_an_avro_type_with_no_or_two_definitions_is_refused(tmp_path: Path) -> None:
    record = '{"type": "record", "name": "%s", "fields": [{"name": "x", "type": "%s"}]}'
    write(tmp_path, {"A/1.avsc": record % ("A", "Nobody")})
    with pytest.raises(SchemaError, match="'Nobody' is not defined"):
        load_folder(tmp_path)
    write(tmp_path, {"A/1.avsc": record % ("Same", "int"), "B/1.avsc": record % ("Same", "long")})
    with pytest.raises(SchemaError, match="'Same' is also defined"):
        load_folder(tmp_path)


NESTED = b"""{
  "properties": {
    "a/b": {"type": "string"},
    "list": [
      1,
      {"x": 2}
    ]
  }
}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("properties",), 2),
        (("properties", "a/b", "type"), 3),
        (("properties", "list", 1, "x"), 6),
        (("properties", "list", "1"), 6),
        (("properties", "absent", "deeper"), 2),
    ],
)
def test_line_of_a_member_or_of_the_nearest_one_around_it(path: tuple[str | int, ...], line: int) -> None:
    assert line_of(NESTED, path) == line


@pytest.mark.parametrize("text", [b"", b"\xff", b'{\n\t"a": 1}', b"[" * 5000])
def test_a_text_that_yaml_cannot_read_has_no_line(text: bytes) -> None:
    assert line_of(text, ("a",)) is None
