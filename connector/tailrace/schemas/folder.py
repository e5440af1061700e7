"""Reads a schema folder: `<subject>/<version>.json` or `.avsc`, or `<subject>.json` for a subject with one version.

A version is a whole number or major.minor.patch: `OrderPlaced/2.json`, `OrderPlaced/1.4.0.json`.
Every file in the folder must be a schema: a file that was silently ignored could be one with a misspelt name, and its
events would not be validated. Exceptions are `compatibility.yaml` and names that start with a dot (version control, the
links of a mounted ConfigMap). JSON Schemas refer to each other by relative path (`../Address/1.json#/$defs/street`) or
by `$id`, Avro schemas by the names of their types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote, urljoin

from tailrace.errors import SchemaError, SchemaVersionInvalid
from tailrace.schema_versions import ANNOTATION, Version, require_version, stated_version
from tailrace.schemas.avro import names as avro_names
from tailrace.schemas.compiled import CompiledSchema, Kind, Reference, SchemaSet
from tailrace.schemas.json_schema import CompiledJsonSchema, outside_references, require_draft
from tailrace.schemas.strict_json import Json, NotJsonError, parse
from tailrace.schemas.validators import BASE, ReferencedSchemas, pointer

COMPATIBILITY = "compatibility.yaml"
"""The only file that is not a schema: it says which changes are allowed."""
KINDS: Mapping[str, Kind] = {".json": "json", ".avsc": "avro"}

_FORM = (
    "The folder holds <event type>/<version>.json (or .avsc), such as OrderPlaced/1.json or OrderPlaced/1.0.0.json, or "
    "<event type>.json."
)


@dataclass(frozen=True, slots=True, eq=False)
class SchemaFile:
    """One file of the folder, parsed but not yet compiled."""

    subject: str
    version: Version
    path: Path
    address: str
    text: bytes
    document: Json

    @property
    def kind(self) -> Kind:
        return KINDS[self.path.suffix]

    @property
    def base(self) -> str:
        """The address that its references are relative to: its `$id`, or its path in the folder."""
        own = self.document.get("$id") if isinstance(self.document, dict) else None
        return urljoin(self.address, own) if isinstance(own, str) else self.address

    def locate(self, path: Sequence[str | int]) -> str:
        """Formats a place in the file for a message, with its line number if the parser for it is installed."""
        try:
            from tailrace.schemas.line_numbers import line_of
        except ModuleNotFoundError:
            return f"{self.path} ({pointer(path)})"  # a service that has only tailrace-outbox
        line = line_of(self.text, path)
        return f"{self.path}{f':{line}' if line else ''} ({pointer(path)})"


def load_folder(path: str | Path) -> SchemaSet:
    """Reads and compiles every schema below `path`. Raises SchemaError for the first one that cannot be used."""
    return compile_files(read_folder(path))


def read_folder(path: str | Path) -> list[SchemaFile]:
    """Reads every schema below `path` without compiling it."""
    folder = Path(path)
    files = []
    for subject, version, file in _files(folder):
        text = _read(file)
        address = BASE + quote(file.relative_to(folder).as_posix())
        files.append(SchemaFile(subject, version, file, address, text, _document(file, text)))
        _require_stated(files[-1])
    return files


def _require_stated(file: SchemaFile) -> None:
    """Refuses a schema that states another version than its name: a registry would take it for that version."""
    document = file.document
    if isinstance(document, dict) and ANNOTATION in document and stated_version(document) != file.version:
        raise SchemaVersionInvalid(
            f"{file.locate((ANNOTATION,))}: {ANNOTATION} is not {file.version}, the version of the file's name",
            why=f"In a registry, {ANNOTATION} says which version a schema is.",
            remedy=f'Write "{ANNOTATION}": "{file.version}", remove {ANNOTATION}, or rename the file.',
        )


def compile_files(files: Sequence[SchemaFile]) -> SchemaSet:
    """Compiles the files. Each may refer to every other."""
    surroundings = _surroundings(files)
    names = avro_names.names_of([(file.document, file) for file in files if file.kind == "avro"])
    by_address = {address: file for file in files for address in (file.address, file.base)}

    def schema(file: SchemaFile) -> CompiledSchema:
        if file.kind == "avro":
            named, referred = names.needed_by(file.document, file)
            references = tuple(Reference(name, other.subject, other.version) for name, other in referred)
            return _avro_compiler(file)(
                file.subject, file.version, file.document, str(file.path), named=named, references=references
            )
        around = surroundings.at(file.base)
        references = _references(file, around, by_address)
        return CompiledJsonSchema.compile(
            file.subject,
            file.version,
            file.document,
            str(file.path),
            surroundings=around,
            references=references,
            locate=partial(SchemaFile.locate, file),
        )

    return SchemaSet.of(map(schema, files))


def _avro_compiler(file: SchemaFile) -> Callable[..., CompiledSchema]:
    try:
        # Imported here because fastavro takes 5 MB, which a folder of JSON Schemas does not need.
        from tailrace.schemas.avro.compiled import CompiledAvroSchema
    except ModuleNotFoundError:
        raise SchemaError(
            f"{file.path} is an Avro schema, which cannot be used here",
            why="Avro needs more than the distribution tailrace-outbox, which is installed alone.",
            remedy="Install the distribution tailrace as well, or use a folder of JSON Schemas.",
        ) from None
    return CompiledAvroSchema.compile


def _surroundings(files: Sequence[SchemaFile]) -> ReferencedSchemas:
    documents: dict[str, Json] = {}
    for file in files:
        if file.kind == "json":
            require_draft(file.document, str(file.path), file.locate)
            documents[file.address] = file.document
    by_id: dict[str, SchemaFile] = {}
    for file in files:
        if file.kind == "json" and file.base != file.address:
            other = by_id.setdefault(file.base, file)
            if other is not file:
                raise SchemaError(
                    f"{file.locate(('$id',))}: {file.base} is already the $id of {other.path}",
                    why="A reference to it could mean either.",
                    remedy="Give each version its own $id, or remove $id.",
                )
    return ReferencedSchemas.of(documents, by_id)


def _references(
    file: SchemaFile, around: ReferencedSchemas, by_address: Mapping[str, SchemaFile]
) -> tuple[Reference, ...]:
    found: dict[str, Reference] = {}
    for _, ref in outside_references(file.document):
        other = by_address.get(around.target(ref))
        if other is not None and other is not file:
            name = ref.partition("#")[0]
            found[name] = Reference(name, other.subject, other.version)
    return tuple(found[name] for name in sorted(found))


def _files(folder: Path) -> Iterator[tuple[str, Version, Path]]:
    for entry in _entries(folder):
        if entry.is_dir():
            files = _entries(entry)
            if not files:
                raise SchemaError(f"{entry} holds no schema", why=_FORM, remedy=f"Add {entry}/1.json, or remove it.")
            for file in files:
                remedy = f"Name it by its version, such as {entry}/1.json or {entry}/1.0.0.json, or move it elsewhere."
                if file.suffix not in KINDS or not file.is_file():
                    raise _unknown(file, remedy)
                yield entry.name, require_version(file.stem, str(file), remedy=remedy), file
        elif entry.suffix in KINDS and entry.stem and entry.is_file():
            yield entry.stem, Version(1), entry
        elif entry.name != COMPATIBILITY:
            raise _unknown(entry, "Rename it, or move it elsewhere.")


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise SchemaError(
            f"the schema folder {folder} cannot be read: {error.strerror}",
            remedy="Name an existing folder that the process may read.",
        ) from None


def _unknown(file: Path, remedy: str) -> SchemaError:
    return SchemaError(f"{file} is not the name of a schema", why=_FORM, remedy=remedy)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SchemaError(f"{file} cannot be read: {error.strerror}", remedy="Check its permissions.") from None


def _document(file: Path, text: bytes) -> Json:
    try:
        return parse(text)
    except NotJsonError as error:
        raise SchemaError(f"{file} is not JSON: {error}", remedy=f"Correct {file}.") from None
