"""Compares every version of a folder's schemas with the earlier ones, under the mode of its subject.

It needs only the files, so it can run in CI. Versions of different kinds (JSON Schema, Avro) are compatible under NONE
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.schemas.avro import names as avro_names
from tailrace.schemas.compatibility.check import Conflict, Document, Mode, Problem, conflicts
from tailrace.schemas.compatibility.modes import Modes
from tailrace.schemas.folder import SchemaFile


class Finding(NamedTuple):
    """The conflicts of one version with earlier ones."""

    file: SchemaFile
    mode: Mode
    conflicts: tuple[Conflict, ...]


def review(files: Sequence[SchemaFile], modes: Modes) -> list[Finding]:
    """Reviews all files, by subject and version."""
    documents = _documents(files)
    findings: list[Finding] = []
    for file in sorted(files, key=lambda each: (each.subject, each.version)):
        earlier = [other for other in files if other.subject == file.subject and other.version < file.version]
        mode = modes.of(file.subject)
        findings.append(Finding(file, mode, _conflicts(mode, file, earlier, documents, strict=modes.strict)))
    return findings


def _conflicts(
    mode: Mode, file: SchemaFile, earlier: list[SchemaFile], documents: dict[SchemaFile, Document], *, strict: bool
) -> tuple[Conflict, ...]:
    if mode is Mode.NONE:
        return ()
    newest_first = sorted(earlier, key=lambda other: other.version, reverse=True)
    compared = newest_first if mode.transitive else newest_first[:1]
    for other in compared:
        if other.kind != file.kind:
            problem = Problem("#", f"is of the kind {file.kind}, and version {other.version} of the kind {other.kind}")
            return (Conflict(other.version, "backward", (problem,)),)
    numbered = [(other.version, documents[other]) for other in compared]
    return tuple(conflicts(mode, file.kind, documents[file], numbered, strict=strict))


def _documents(files: Sequence[SchemaFile]) -> dict[SchemaFile, Document]:
    by_address = {address: file.document for file in files for address in (file.address, file.base)}
    names = avro_names.names_of([(file.document, file) for file in files if file.kind == "avro"])
    documents: dict[SchemaFile, Document] = {}
    for file in files:
        if file.kind == "avro":
            documents[file] = Document(file.document, resources=names.needed_by(file.document, file)[0])
        else:
            documents[file] = Document(file.document, file.base, by_address)
    return documents
