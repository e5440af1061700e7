"""The folder registry: `<event type>/<version>.json`, or `<event type>.json` for a type with version 1 alone.

Everything in the folder must be a schema: a file that is passed over in silence could be one whose name was
misspelt, and its events would go unchecked. Only names that start with a dot are ignored (version control,
the links that a mounted ConfigMap consists of). Reading happens here; compiling and checking are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tailrace.errors import SchemaError
from tailrace.schemas.contracts import SchemaSet
from tailrace.schemas.json_contract import JsonContract
from tailrace.schemas.json_text import NotJsonError, parse

_version = re.compile(r"([1-9][0-9]{0,8})\.json").fullmatch
_FORM = "The folder holds <event type>/<version>.json, such as OrderPlaced/1.json, or <event type>.json."


def load_folder(path: str | Path) -> SchemaSet:
    """Every schema below `path`, compiled; the first that cannot be used raises SchemaError."""
    return SchemaSet.of(
        JsonContract.compile(type_name, version, _read(file), str(file))
        for type_name, version, file in _files(Path(path))
    )


def _files(folder: Path) -> Iterator[tuple[str, int, Path]]:
    for entry in _entries(folder):
        if entry.is_dir():
            files = _entries(entry)
            if not files:
                raise SchemaError(f"{entry} holds no schema", why=_FORM, remedy=f"Add {entry}/1.json, or remove it.")
            for file in files:
                match = _version(file.name)
                if match is None or not file.is_file():
                    raise _unknown(file, f"Name it by its version, such as {entry}/1.json, or move it elsewhere.")
                yield entry.name, int(match[1]), file
        elif entry.suffix == ".json" and entry.stem and entry.is_file():
            yield entry.stem, 1, entry
        else:
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


def _read(file: Path) -> object:
    try:
        return parse(file.read_bytes())
    except NotJsonError as error:
        raise SchemaError(f"{file} is not JSON: {error}", remedy=f"Correct {file}.") from None
    except OSError as error:
        raise SchemaError(f"{file} cannot be read: {error.strerror}", remedy="Check its permissions.") from None
