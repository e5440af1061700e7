"""Generated models pass linter and type checker, and accept everything that their schemas accept."""

from __future__ import annotations

import datetime as dt
import itertools
import subprocess
import sys
import types
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest
from pydantic import BaseModel, ValidationError

from helpers.fetched import suite_groups
from tailrace.codegen.models.source_text import models_source
from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.avro.reader import reader
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.folder import load_folder
from tailrace.schemas.json_schema import DRAFTS, CompiledJsonSchema

ROOT = Path(__file__).parents[4]
DEMO = ROOT / "schemas"
_numbers = itertools.count()

ORDER = {
    "description": 'An order\\s \\u0000 "placed" by\u202e somebody. ' + "A long story. " * 12,
    "type": "object",
    "required": ["id", "class", "lines", "first name", "status"],
    "properties": {
        "id": {"type": "string", "format": "uuid", "description": "Of the order."},
        "class": {"enum": ["a", "b", None]},
        "first name": {"type": "string"},
        "_hidden": {"type": "boolean"},
        "model_config": {"type": "integer"},
        "model_number": {"type": "integer"},
        "json": {"type": "string"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "date": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "orderTotal": {"type": "number"},
        "2nd": {"type": ["integer", "null"]},
        "žluť": {"const": 5},
        "": {},
        "status": {"enum": [f"a-status-of-a-long-name-{n}" for n in range(5)] + ["it's", 'so "called"']},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        "parent": {"$ref": "#"},
        "to": {"anyOf": [{"$ref": "../Address/1.json"}, {"type": "null"}]},
        "either": {"oneOf": [{"type": "integer"}, {"type": "object", "properties": {"x": {"type": "string"}}}]},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        "odd": {"not": {"type": "string"}},
        "tree": {"$ref": "#/$defs/tree"},
        "about_that_line": {"allOf": [{"$ref": "#/$defs/line"}], "description": "One of them."},
        "a_property_of_a_rather_long_name_that_has_no-legal-name-in-python": {"type": "string"},
    },
    "$defs": {
        "line": {
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"price": {"type": "number"}}, "required": ["price"]}]
        },
        "base": {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}},
        "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
    },
}
ADDRESS = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}
PAYLOAD: dict[str, Any] = {
    "id": str(UUID(int=7)),
    "class": None,
    "first name": "Ada",
    "_hidden": True,
    "model_config": 1,
    "model_number": 2,
    "json": "{}",
    "list": [1, 2.0],
    "date": "2026-01-02",
    "at": "2026-01-02T03:04:05Z",
    "orderTotal": 3,
    "2nd": None,
    "žluť": 5,
    "": [],
    "status": "it's",
    "lines": [{"sku": "A-1", "price": 1.5, "more": 1}],
    "tags": {"a": "b"},
    "parent": {"id": str(UUID(int=8)), "class": "a", "first name": "", "lines": [], "status": 'so "called"'},
    "to": {"city": "Oslo"},
    "either": {"x": "y"},
    "pair": ["a", 1],
    "odd": 5,
    "tree": [[], [[]]],
    "about_that_line": {"sku": "A-1", "price": 2},
}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string", "doc": "Of the shop."}]}
SALE = {
    "type": "record",
    "name": "Sale",
    "namespace": "shop",
    "doc": "Something was sold.",
    "fields": [
        {"name": "class", "type": "string"},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "first", "type": ["null", "Line"], "default": None},
        {"name": "total", "type": "shop.Money"},
        {"name": "next", "type": ["null", "Sale"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "OLD"]}, "default": "NEW"},
        {"name": "count", "type": "long", "default": 1},
        {"name": "rate", "type": "double", "default": 1},
        {"name": "paid", "type": "boolean", "default": False},
        {"name": "tags", "type": {"type": "map", "values": "int"}, "default": {}},
        {"name": "raw", "type": "bytes"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "nanos", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}},
    ],
}
MONEY = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
SOLD = {
    "class": "c",
    "lines": [{"sku": "A-1"}],
    "first": {"sku": "A-2"},
    "total": {"cents": 5},
    "next": None,
    "state": "OLD",
    "count": 2,
    "rate": 0.5,
    "paid": True,
    "tags": {"a": 1},
    "raw": "AAE=",
    "day": "2026-01-02",
    "clock": "03:04:05.678901",
    "at": "2026-01-02T03:04:05.678901Z",
    "local": "2026-01-02T03:04:05",
    "nanos": 17,
    "price": "12.50",
    "id": str(UUID(int=7)),
}
SINCE = {"day": 20455, "clock": 11045678901, "at": 1767323045678901, "local": 1767323045000}
"""The same value as Avro stores it."""


def folder(root: Path, files: dict[str, Any]) -> list[CompiledSchema]:
    for name, document in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(orjson.dumps(document))
    return list(load_folder(root))


@pytest.fixture
def everything(tmp_path: Path) -> list[CompiledSchema]:
    """All constructs, two versions of a type, types with names that are in use, and those of the demo."""
    files: dict[str, Any] = {
        "order.taken/1.json": ADDRESS,
        "order.taken/2.json": ORDER,
        "order_taken/1.json": {"type": ["string", "null"]},
        "Address/1.json": ADDRESS,
        "Field.json": {"type": "object"},
        "None.json": ADDRESS,
        "9.json": True,
        "Money/1.avsc": MONEY,
        "Names/1.avsc": {"type": "array", "items": "string"},
        "Sale/1.avsc": SALE,
    }
    demo = {str(file.relative_to(DEMO)): orjson.loads(file.read_bytes()) for file in DEMO.glob("*/*.json")}
    return folder(tmp_path / "schemas", files | demo)


def imported(source: str) -> Any:
    """Imports the source as a module, because pydantic resolves later classes there."""
    name = f"models_made_by_a_test_{next(_numbers)}"
    module = sys.modules[name] = types.ModuleType(name)
    exec(source, module.__dict__)
    return module


def model(document: Any, name: str = "Order") -> Any:
    return getattr(
        imported(models_source([CompiledJsonSchema.compile(name, Version(1), document, f"{name}.json")])), name
    )


def mistakes(made: type[BaseModel], value: Any) -> set[str]:
    """Returns the errors of a model for a value."""
    try:
        made.model_validate(value)
    except ValidationError as error:
        return {each["type"] for each in error.errors()}
    return set()


class TestSource:
    def test_it_passes_linter_formatter_and_type_checker(
        self, everything: list[CompiledSchema], tmp_path: Path
    ) -> None:
        file = tmp_path / "events.py"
        file.write_text(models_source(everything))
        user = tmp_path / "user.py"
        user.write_text(
            "from events import OrderTaken, OrderTakenV1, Sale\n\n"
            "def total(order: OrderTaken, sale: Sale, old: OrderTakenV1) -> float:\n"
            "    reveal_type(order.to)\n    reveal_type(sale.at)\n    reveal_type(old.city)\n"
            "    return order.lines[0].price + sale.total.cents\n"
        )
        ours = ["--config", str(ROOT / "pyproject.toml"), "--config", "lint.isort.known-third-party=['tailrace']"]
        for command in (
            ["ruff", "check", "--isolated", "--select", "F,W,I,UP,B,N,RUF,PL,ERA", "--ignore", "RUF001,RUF002", file],
            ["ruff", "check", *ours, file],
            ["ruff", "format", "--check", "--isolated", file],
            ["ruff", "format", "--check", *ours, file],
            ["mypy", "--strict", "--config-file", "", "--cache-dir", tmp_path / "cache", file, user],
        ):
            done = subprocess.run(
                [sys.executable, "-m", *map(str, command)],
                cwd=tmp_path, capture_output=True, text=True, check=False, timeout=170,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr + file.read_text()
        assert 'Revealed type is "events.Address | None"' in done.stdout
        assert 'Revealed type is "datetime.datetime"' in done.stdout

    def test_the_same_schemas_give_the_same_text_in_any_order(self, everything: list[CompiledSchema]) -> None:
        assert models_source(everything) == models_source(everything[::-1])

    def test_without_schemas_the_module_can_be_imported(self) -> None:
        imported(models_source([]))


class TestNames:
    def test_the_latest_version_has_the_name_of_its_type(self, everything: list[CompiledSchema]) -> None:
        made = imported(models_source(everything))
        assert "lines" in made.OrderTaken.model_fields
        assert list(made.OrderTakenV1.model_fields) == ["city"]

    def test_the_numbers_of_a_version_stay_apart_in_a_name(self, tmp_path: Path) -> None:
        inner = {"type": "object", "properties": {"to": ADDRESS}}
        schemas = folder(tmp_path, {f"Order/{version}.json": inner for version in ("1.9.0", "1.10.0", "2", "19.0.0")})
        made = imported(models_source(schemas))
        names = {"OrderV1_9_0", "OrderV1_10_0", "OrderV2", "Order", "OrderV1_9_0To", "OrderTo"}
        assert names <= vars(made).keys()

    def test_invalid_and_duplicate_names_are_changed(self, everything: list[CompiledSchema]) -> None:
        made = imported(models_source(everything))
        assert made.OrderTaken2.model_validate(None).root is None
        assert made.None2.model_validate({"city": "Oslo"}).city == "Oslo"
        assert made.Field2.model_validate({"a": 1}).root == {"a": 1}
        assert made.Model9.model_validate("whatever").root == "whatever"
        fields = {each.alias: name for name, each in made.OrderTaken.model_fields.items() if each.alias is not None}
        assert fields == {
            "class": "class_",
            "first name": "first_name",
            "_hidden": "hidden",
            "model_config": "model_config_",
            "json": "json_",
            "list": "list_",
            "2nd": "field_2nd",
            "žluť": "zlut",
            "": "field_",
            "a_property_of_a_rather_long_name_that_has_no-legal-name-in-python": (
                "a_property_of_a_rather_long_name_that_has_no_legal_name_in_python"
            ),
        }

    def test_two_fields_with_the_same_python_name_are_distinguished(self) -> None:
        names = ["a-b", "a_b", "a b", "class", "class_"]
        made = model({"type": "object", "required": names, "properties": {name: {} for name in names}})
        found = made.model_validate({name: name for name in names})
        assert (found.a_b, found.class_) == ("a_b", "class_")
        assert found.model_dump(by_alias=True) == {name: name for name in names}

    def test_text_of_a_schema_never_becomes_code(self) -> None:
        evil = '"""\n\\"""; raise SystemExit #'
        made = model(
            {"description": evil, "type": "object", "properties": {evil: {"description": evil, "enum": [evil, "b"]}}}
        )
        assert made.model_validate({evil: evil}).model_dump(by_alias=True) == {evil: evil}


class TestJson:
    def test_every_construct_is_parsed(self, everything: list[CompiledSchema]) -> None:
        found = imported(models_source(everything)).OrderTaken.model_validate(PAYLOAD)
        assert (found.id, found.class_, found.list_) == (UUID(int=7), None, [1, 2])
        assert (found.date, found.at) == (dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC))
        assert (found.lines[0].sku, found.lines[0].price) == ("A-1", 1.5)
        assert found.parent.parent is None
        assert found.parent.lines == []
        assert type(found.to).__name__ == "Address"
        assert (found.either.x, found.pair, found.odd, found.tags) == ("y", ["a", 1], 5, {"a": "b"})
        assert type(found.about_that_line) is type(found.lines[0])
        assert found.tree.model_dump() == [[], [[]]]

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("id", "x"),
            ("class", "c"),
            ("lines", [{"sku": "a"}]),
            ("to", {}),
            ("tree", [1]),
            ("žluť", 6),
            ("date", "no"),
        ],
    )
    def test_values_of_another_type_are_rejected(
        self, everything: list[CompiledSchema], field: str, value: Any
    ) -> None:
        made = imported(models_source(everything)).OrderTaken
        with pytest.raises(ValidationError):
            made.model_validate({**PAYLOAD, field: value})
        with pytest.raises(ValidationError):
            made.model_validate({name: value for name, value in PAYLOAD.items() if name != "lines"})

    def test_undeclared_fields_are_kept(self) -> None:
        more = {"type": "object", "properties": {"a": {"type": "integer"}}}
        assert model(more).model_validate({"a": 1, "b": 2}).model_extra is None
        opened = model({**more, "additionalProperties": {"type": "integer"}})
        assert opened.model_validate({"a": 1, "b": 2}).model_extra == {"b": 2}

    def test_a_format_that_the_draft_does_not_check_is_text(self) -> None:
        old = {"$schema": DRAFTS[2], "type": "object", "required": ["a"], "properties": {"a": {"type": "string", "format": "uuid"}}}  # fmt: skip  # noqa: E501
        assert model(old).model_validate({"a": "none"}).a == "none"

    @pytest.mark.parametrize("draft", ["draft2020-12", "draft7", "draft4"])
    def test_a_model_accepts_everything_that_its_schema_accepts(self, draft: str) -> None:
        """Uses the official suite, without the values that a schema accepts only because `type` is missing."""
        names = {"draft2020-12": DRAFTS[0], "draft7": DRAFTS[2], "draft4": DRAFTS[4]}
        taken = meant = 0
        for group in suite_groups(draft):
            document = group["schema"]
            if isinstance(document, dict):
                document = {"$schema": names[draft], **document}
            try:
                schema = CompiledJsonSchema.compile("E", Version(1), document, "E.json")
            except SchemaError:
                continue  # it would have to be fetched
            made: type[BaseModel] = imported(models_source([schema])).E
            for each in (test["data"] for test in group["tests"] if schema.is_valid(test["data"])):
                wrong = mistakes(made, each)
                assert wrong <= {"model_type", "list_type"}, (group, each)
                assert not wrong or "type" not in document, (group, each)
                taken += not wrong
                meant += bool(wrong)
        assert taken > 300
        assert meant < 20


class TestAvro:
    @pytest.fixture
    def sale(self, everything: list[CompiledSchema]) -> Any:
        return imported(models_source(everything)).Sale

    def test_avro_and_json_give_the_same_model(self, sale: Any) -> None:
        schema = CompiledAvroSchema.compile("Sale", Version(1), SALE, "Sale/1.avsc", named={"shop.Money": MONEY})
        came = reader(SALE, "Sale/1.avsc", {"shop.Money": MONEY})(schema.encode(SOLD))
        found = sale.model_validate(came)
        assert found == sale.model_validate(SOLD) == sale.model_validate({**SOLD, **SINCE})
        assert (found.raw, found.price, found.id) == (b"\0\1", Decimal("12.50"), UUID(int=7))
        assert found.at == dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
        assert (found.day, found.clock) == (dt.date(2026, 1, 2), dt.time(3, 4, 5, 678901))
        assert found.local == dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001
        assert type(found.total).__name__ == "Money"
        assert (found.lines[0].sku, found.first.sku, found.nanos) == ("A-1", "A-2", 17)

    def test_a_field_missing_in_an_earlier_version_has_its_default(self, sale: Any) -> None:
        later = ("first", "next", "state", "count", "rate", "paid", "tags")
        found = sale.model_validate({name: value for name, value in SOLD.items() if name not in later})
        assert [getattr(found, name) for name in later] == [None, None, "NEW", 1, 1.0, False, None]
        with pytest.raises(ValidationError):
            sale.model_validate({name: value for name, value in SOLD.items() if name != "price"})

    @pytest.mark.parametrize("field", ["day", "clock", "at", "local"])
    def test_a_number_beyond_pythons_years_is_refused(self, sale: Any, field: str) -> None:
        with pytest.raises(ValidationError):
            sale.model_validate({**SOLD, field: 2**62})

    def test_a_type_that_is_not_a_record_has_a_root(self, everything: list[CompiledSchema]) -> None:
        assert imported(models_source(everything)).Names.model_validate(["a"]).root == ["a"]
