"""Names that Avro schemas define and use."""

from __future__ import annotations

from tailrace.schemas.avro.names import definitions, used

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "money", "type": "Money"},
        {"name": "other", "type": ["null", "bank.Money"]},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "bank.Line", "fields": [
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"]}},
            {"name": "again", "type": "Kind"},
        ]}}},
        {"name": "tags", "type": {"type": "map", "values": "Order"}},
    ],
}  # fmt: skip


def test_a_name_inherits_the_enclosing_namespace() -> None:
    assert {name for name, _ in definitions(ORDER)} == {"shop.Order", "bank.Line", "bank.Kind"}
    assert set(used(ORDER)) == {"shop.Money", "bank.Money", "bank.Kind", "shop.Order"}


def test_an_extracted_definition_keeps_its_full_name() -> None:
    kind = dict(definitions(ORDER))["bank.Kind"]
    assert kind["namespace"] == "bank"


def test_a_schema_without_names_defines_and_uses_none() -> None:
    assert list(definitions(["null", "string"])) == []
    assert list(used({"type": "array", "items": "long"})) == []
