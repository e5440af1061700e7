"""Events of real size: ten types, twenty fields, nested arrays, patterns and formats; as SQL, JSON Schema and Avro."""

from __future__ import annotations

from typing import Any

TYPES = tuple(f"Invoice{number}" for number in range(10))

REAL_DDL = """
CREATE TABLE outbox (
    id uuid PRIMARY KEY,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb
);
CREATE PROCEDURE backlog(transactions int, events int) LANGUAGE plpgsql AS $$
BEGIN
    FOR transaction IN 1 .. transactions LOOP
        INSERT INTO outbox
        SELECT gen_random_uuid(), 'order', 'order-' || (random() * 5000)::int, 'Invoice' || event % 10,
            jsonb_build_object(
                'invoice', 'INV-' || lpad(event::text, 8, '0'), 'order', 'order-' || event, 'revision', event,
                'issued', '2026-11-16T10:11:12Z', 'due', '2026-12-16', 'currency', 'EUR', 'status', 'open',
                'net', event * 100, 'tax', event * 19, 'gross', event * 119, 'rate', 0.19, 'paid', event % 2 = 0,
                'channel', 'web', 'language', 'de-DE', 'email', 'customer' || event || '@example.org',
                'note', repeat('x', 40), 'reference', gen_random_uuid(),
                'customer', jsonb_build_object('id', 'C-' || transaction, 'name', 'Customer ' || event,
                    'tags', jsonb_build_array('new', 'web')),
                'address', jsonb_build_object('street', 'Hauptstr. 1', 'zip', '10115', 'city', 'Berlin',
                    'country', 'DE'),
                'lines', jsonb_build_array(
                    jsonb_build_object('sku', 'SKU-1001', 'quantity', 1, 'price', 1999),
                    jsonb_build_object('sku', 'SKU-1002', 'quantity', 2, 'price', 599)))
        FROM generate_series(1, events) AS event;
        COMMIT;
    END LOOP;
END $$;
"""

_TEXT: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 200}
_CENTS: dict[str, Any] = {"type": "integer", "minimum": 0}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def json_schema(title: str) -> dict[str, Any]:
    line = {"sku": {"type": "string", "pattern": "^SKU-[0-9]{4}$"}, "quantity": {**_CENTS}, "price": _CENTS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **_object(
            {
                "invoice": {"type": "string", "pattern": "^INV-[0-9]{8}$"},
                "order": _TEXT,
                "revision": {"type": "integer", "minimum": 1},
                "issued": {"type": "string", "format": "date-time"},
                "due": {"type": "string", "format": "date"},
                "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
                "status": {"enum": ["open", "paid", "void"]},
                "net": _CENTS,
                "tax": _CENTS,
                "gross": _CENTS,
                "rate": {"type": "number", "minimum": 0, "maximum": 1},
                "paid": {"type": "boolean"},
                "channel": {"enum": ["web", "shop", "phone"]},
                "language": {"type": "string", "pattern": "^[a-z]{2}-[A-Z]{2}$"},
                "email": {"type": "string", "format": "email"},
                "note": {"type": "string", "maxLength": 500},
                "reference": {"type": "string", "format": "uuid"},
                "customer": _object(
                    {"id": _TEXT, "name": _TEXT, "tags": {"type": "array", "items": _TEXT, "maxItems": 10}}
                ),
                "address": _object(
                    {
                        "street": _TEXT,
                        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
                        "city": _TEXT,
                        "country": {"type": "string", "pattern": "^[A-Z]{2}$"},
                    }
                ),
                "lines": {"type": "array", "minItems": 1, "maxItems": 100, "items": _object(line)},
            }
        ),
    }


def avro_schema(name: str) -> dict[str, Any]:
    def record(record_name: str, **fields: Any) -> dict[str, Any]:
        return {
            "type": "record",
            "name": record_name,
            "fields": [{"name": field, "type": kind} for field, kind in fields.items()],
        }

    text = dict.fromkeys(["invoice", "order", "currency", "channel", "language", "email", "note"], "string")
    return record(
        name,
        **text,
        revision="long",
        issued={"type": "long", "logicalType": "timestamp-millis"},
        due={"type": "int", "logicalType": "date"},
        status={"type": "enum", "name": f"{name}Status", "symbols": ["open", "paid", "void"]},
        **dict.fromkeys(["net", "tax", "gross"], "long"),
        rate="double",
        paid="boolean",
        reference={"type": "string", "logicalType": "uuid"},
        customer=record(f"{name}Customer", id="string", name="string", tags={"type": "array", "items": "string"}),
        address=record(f"{name}Address", street="string", zip="string", city="string", country="string"),
        lines={"type": "array", "items": record(f"{name}Line", sku="string", quantity="long", price="long")},
    )


FLAT_AVRO: dict[str, Any] = {
    "type": "record",
    "name": "OrderPlaced",
    "fields": [
        *({"name": name, "type": "string"} for name in ("order", "customer", "currency", "status", "note")),
        {"name": "amount", "type": "double"},
        {"name": "revision", "type": "long"},
        {"name": "express", "type": "boolean"},
    ],
}
