"""Whether one JSON Schema accepts everything that another one allows, and if not, where and why.

jsonschema-rs decides: both schemas are brought into its canonical form, and the reader must provably cover the writer.
What it cannot decide ("unknown", or a schema it does not support) counts as incompatible. `json_explain` then finds
the parts of the reader's schema that fail.

By default, open objects are read leniently (see `json_open_objects`); `strict` compares the sets of instances.
"""

from __future__ import annotations

from collections.abc import Callable

import jsonschema_rs
import orjson
from jsonschema_rs import CanonicalSchema
from jsonschema_rs.canonical import CanonicalKind, Containment

from tailrace.schemas.compatibility.document import Document, Incomparable, Problem
from tailrace.schemas.compatibility.json_documents import LISTS, MAPS, ONE, SchemaDocuments
from tailrace.schemas.compatibility.json_explain import GENERAL, ProblemFinder
from tailrace.schemas.compatibility.json_open_objects import inlined, without_names
from tailrace.schemas.json_schema import DRAFTS
from tailrace.schemas.strict_json import Json


def json_problems(
    reader: Document, writer: Document, reader_name: str, writer_name: str, *, strict: bool = False
) -> tuple[Problem, ...]:
    """Why `reader` may reject what `writer` allows; empty if it provably never does."""
    try:
        reading, writing = SchemaDocuments(reader), SchemaDocuments(writer)
        reads, written = reading.canonical(), writing.canonical()
        if _covers(reads, written):
            return ()
        if written.kind == CanonicalKind.RAW:
            return (Problem("#", GENERAL.format(reader=reader_name, writer=writer_name)),)
        # With references inlined, jsonschema-rs can prove more.
        reader_schema = inlined(reading)
        writer_schema = without_names(writing, () if strict else reading.property_names)
        if reader_schema is not None:
            reads = reading.canonical(reader_schema)
        if writer_schema is not None:
            written = writing.canonical(writer_schema)
        if _covers(reads, written):
            return ()
        size = len(orjson.dumps(written.to_json_schema(), default=str))
        finder = ProblemFinder(reading, writing, lambda schema: _covers(reading.canonical(schema), written), size)
        return finder.problems(reader_name, writer_name)
    except Incomparable as error:
        return (error.problem,)


def _covers(reader: CanonicalSchema, writer: CanonicalSchema) -> bool:
    try:
        if reader.draft != writer.draft:
            reader, writer = _in_newest_draft(reader), _in_newest_draft(writer)
        return reader.covers(writer) == Containment.YES
    except (jsonschema_rs.canonical.CanonicalizationError, ValueError):
        return False


def _in_newest_draft(schema: CanonicalSchema) -> CanonicalSchema:
    """The canonical form uses few keywords, and only two of them differ between drafts."""
    document = schema.to_json_schema()
    # In draft 4 alone, 1.0 is no integer; a form that was kept as it is may use any keyword.
    if schema.kind == CanonicalKind.RAW or (schema.draft == 4 and b'"integer"' in orjson.dumps(document, default=str)):
        raise ValueError("cannot be translated")
    translated = _translated(document)
    if isinstance(translated, dict):
        translated["$schema"] = DRAFTS[0]
    return jsonschema_rs.canonicalize(translated, validate_formats=True, pattern_options=jsonschema_rs.RegexOptions())


def _translated(schema: Json) -> Json:
    if not isinstance(schema, dict):
        return schema
    found = {keyword: _inside(keyword, value, _translated) for keyword, value in schema.items()}
    for end in ("Minimum", "Maximum"):
        if isinstance(found.get(f"exclusive{end}"), bool) and found.pop(f"exclusive{end}"):
            found[f"exclusive{end}"] = found.pop(end.lower())
    if isinstance(found.get("items"), list):
        found["prefixItems"] = found.pop("items")
        if "additionalItems" in found:
            found["items"] = found.pop("additionalItems")
    return found


def _inside(keyword: str, value: Json, change: Callable[[Json], Json]) -> Json:
    if keyword in LISTS and isinstance(value, list):
        return [change(each) for each in value]
    if keyword in MAPS and isinstance(value, dict):
        return {name: change(each) for name, each in value.items()}
    return change(value) if keyword in ONE else value
