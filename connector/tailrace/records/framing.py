"""Which schema a value or key was written with, as registries' own readers look for it: before it, or in a header.

Before it: a zero byte and the schema's number in four bytes. In a header: a one byte and the schema's GUID; a registry
that gives no GUIDs gets the first form there, which readers of headers know as well. Nothing else is added: only
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
    """What stands before a value or key of this contract."""
    return struct.pack(">bI", 0, _registered(schema).id)


def in_header(schema: CompiledSchema) -> bytes:
    """What stands in the header of a value or key of this contract."""
    registered = _registered(schema)
    if registered.guid is None:
        return before(schema)
    return b"\x01" + UUID(registered.guid).bytes


def _registered(schema: CompiledSchema) -> RegistryIds:
    if schema.registered is None:
        raise ConfigError(
            f"version {schema.version} of {schema.subject} ({schema.file}) has no id to write",
            why="format.schema_id asks for the id that a registry gave the schema, and this one is in none.",
            remedy="Name a registry under schemas.registry, or set format.schema_id: none.",
        )
    return schema.registered
