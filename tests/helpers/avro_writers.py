"""Compares the bytes of the generated and the typed Avro writer with those of the reference path."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

from helpers.avro import FILE, field, record
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.avro.generated_writer import Write, generate
from tailrace.schemas.avro.schema import Type, compile_document
from tailrace.schemas.avro.typed_writer import typed
from tailrace.schemas.strict_json import parse


def top_type(document: Any) -> Type:
    return compile_document(document, FILE, {}).top


def generated_writer(document: Any) -> Write:
    fast = generate(top_type(document))
    assert fast is not None
    return fast


def reference_schema(document: Any) -> CompiledAvroSchema:
    """Compiles a schema that only uses the reference path."""
    with patch("tailrace.schemas.avro.compiled.generate", lambda _: None):
        return CompiledAvroSchema.compile("T", Version(1), document, FILE)


def try_write(fast: Write, value: Any) -> bytes | None:
    """Returns None if the generated writer leaves the value to the reference path."""
    try:
        return fast(value)
    except Exception:  # noqa: BLE001 - any exception means that
        return None


def typed_same_bytes(document: Any, value: Any) -> bytes | None:
    """Checks that the typed writer writes a record with this value as the reference path does, or returns None."""
    around = record(field("whole", document), name="Around")
    encode_text = typed(top_type(around))
    try:
        text = json.dumps({"whole": value}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None
    data = encode_text(text, True) if encode_text else None
    if encode_text is None or data is None:
        return None
    slow, parsed = reference_schema(around), parse(text)
    assert slow.is_valid(parsed), slow.explain(parsed, 0)
    assert slow.encode(parsed) == data
    for one in (text, json.dumps(parsed).encode(), json.dumps(parsed, indent=1).encode()):
        assert encode_text(one, False) in (data, None)
    return data


def same_bytes(document: Any, value: Any) -> bytes | None:
    """Checks that the generated and the typed writer write this value as the reference path does, or not at all.

    Returns the bytes of the generated writer, or None.
    """
    typed_same_bytes(document, value)
    data = try_write(generated_writer(document), value)
    if data is not None:
        slow = reference_schema(document)
        assert slow.is_valid(value), slow.explain(value, 0)
        assert slow.encode(value) == data
    return data
