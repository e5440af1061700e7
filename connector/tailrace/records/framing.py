"""Writes the id of a schema as deserialisers of registries expect it: before the value or key, or in a header.

Before it: a zero byte and the schema's id in four bytes. In a header: a one byte and the schema's GUID; if the registry
has no GUIDs, the header has the first form, which readers of headers accept as well. Nothing else is added: only
Protobuf names the message inside a schema.
"""

from __future__ import annotations

import struct
from typing import Literal
from uuid import UUID

from tailrace.errors import ConfigError
from tailrace.schemas.compiled import CompiledSchema, RegistryIds

SchemaId = Literal["none", "prefix", "header"]

KEY_HEADER = "__key_schema_id"
VALUE_HEADER = "__value_schema_id"


def before(schema: CompiledSchema) -> bytes:
    """Returns the bytes before a value or key with this schema."""
    return struct.pack(">bI", 0, _registered(schema).id)


def in_header(schema: CompiledSchema) -> bytes:
    """Returns the content of the schema id's header for a value or key with this schema."""
    registered = _registered(schema)
    if registered.guid is None:
        return before(schema)
    return b"\x01" + UUID(registered.guid).bytes


def _registered(schema: CompiledSchema) -> RegistryIds:
    if schema.registered is None:
        raise ConfigError(
            f"version {schema.version} of {schema.subject} ({schema.file}) has no id to write",
            why="format.schema_id requires the schema's id in a registry, and this schema is in none.",
            remedy="Name a registry under schemas.registry, or set format.schema_id: none.",
        )
    return schema.registered
