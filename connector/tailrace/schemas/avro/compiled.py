"""CompiledAvroSchema: an Avro schema, compiled to a writer. A payload is valid if it can be written.

A payload is valid if it can be written as Avro and would be read as the same value. There are three paths. Most
payloads are read into types made for the schema and written from there (`typed_writer`). Many others are written by a
function that is generated for the schema (`generated_writer`). The rest is converted by the reference path
(`scalar_converters`, `container_converters`), which also explains what is wrong, and fastavro writes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_writer

from tailrace.errors import Reason, Rejected, SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.avro.generated_writer import Write, generate
from tailrace.schemas.avro.scalar_converters import Convert, ValueMismatch
from tailrace.schemas.avro.schema import Compiled, compile_document
from tailrace.schemas.avro.typed_writer import typed
from tailrace.schemas.compiled import EncodeText, Kind, Reference, RegistryIds
from tailrace.schemas.messages import cut, path_text
from tailrace.schemas.strict_json import Json

_WHOLE = "Whole"
_NOTHING: tuple[Json, bytes] = (object(), b"")
"""No payload is this object."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledAvroSchema:
    """Implements `CompiledSchema` with an Avro schema. `write` raises ValueMismatch for a value that is not valid.

    `last` holds the last valid value and its bytes, because those are usually needed next. It is only used for the very
    same object, which stays alive as long as it is stored here.
    """

    subject: str
    version: Version
    file: str
    document: Json
    write: Write
    is_valid: Callable[[Any], bool]
    last: list[tuple[Json, bytes]]
    encode_text: EncodeText | None
    references: tuple[Reference, ...] = ()
    registered: RegistryIds | None = None
    kind: Kind = "avro"

    @classmethod
    def compile(
        cls,
        subject: str,
        version: Version,
        document: Json,
        file: str,
        *,
        named: Mapping[str, Json] = {},
        references: tuple[Reference, ...] = (),
        registered: RegistryIds | None = None,
    ) -> CompiledAvroSchema:
        """Compiles a schema document. Raises SchemaError if it cannot be used.

        `named` holds definitions that the document uses but does not contain, by full name.
        """
        compiled = compile_document(document, file, named)
        writer = compiled.top.writer
        convert = _clearing_memory(compiled)
        if not isinstance(writer, dict) or writer["type"] != "record":
            # fastavro prepares only records. A record with one field is written as that field alone.
            writer = {"type": "record", "name": _WHOLE, "fields": [{"name": "whole", "type": writer}]}
            convert = _wrapped(convert)
        try:
            prepared = parse_schema(writer)
        except Exception as error:  # noqa: BLE001 - the parser raises anything
            raise SchemaError(f"{file} cannot be compiled: {error}", remedy=f"Correct {file}.") from None
        write = _reference_writer(convert, prepared)
        fast = generate(compiled.top)
        if fast is not None:
            write = _either(fast, write)
        last = [_NOTHING]
        check, encode_text = _check(write, last), typed(compiled.top)
        return cls(subject, version, file, document, write, check, last, encode_text, references, registered)

    def explain(self, value: Json, size: int) -> str:
        try:
            self.write(value)
        except ValueMismatch as mismatch:
            return f"{path_text(tuple(reversed(mismatch.path)))}: {mismatch}"
        return f"it is valid ({size} bytes)"

    def encode(self, content: Json) -> bytes:
        if type(content) is bytes:
            return content  # written by `encode_text`
        checked, data = self.last[0]
        self.last[0] = _NOTHING
        if checked is content:
            return data
        try:
            return self.write(content)
        except ValueMismatch:
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"the value violates version {self.version} of {cut(self.subject)}: {self.explain(content, 0)}",
                remedy=f"Correct the service, or register a new version beside {self.file}.",
            ) from None


def _check(write: Write, last: list[tuple[Json, bytes]]) -> Callable[[Any], bool]:
    def is_valid(value: Json) -> bool:
        try:
            last[0] = (value, write(value))
        except ValueMismatch:
            return False
        return True

    return is_valid


def _either(fast: Write, reference: Write) -> Write:
    def write(value: Json) -> bytes:
        try:
            return fast(value)
        except Exception:  # noqa: BLE001, S110 - any exception leaves the payload to the reference path
            pass
        return reference(value)

    return write


def _reference_writer(convert: Convert, prepared: Any) -> Write:  # noqa: ANN401 - fastavro's prepared schema
    def write(value: Json) -> bytes:
        out = BytesIO()
        schemaless_writer(out, prepared, convert(value))
        return out.getvalue()

    return write


def _wrapped(convert: Convert) -> Convert:
    return lambda value: {"whole": convert(value)}


def _clearing_memory(compiled: Compiled) -> Convert:
    """Returns a converter that clears the memory of ambiguous unions afterwards. Most schemas have none."""
    convert, tried = compiled.top.convert, compiled.tried
    if not tried:
        return convert

    def convert_and_clear(value: Json) -> Any:  # noqa: ANN401
        try:
            return convert(value)
        finally:
            for one in tried:
                one.clear()

    return convert_and_clear
