"""`compatibility.yaml` of a schema folder: which changes of a schema are allowed.

default: BACKWARD                  # NONE, BACKWARD, FORWARD, FULL, and each with _TRANSITIVE
subjects: {OrderPlaced: FULL}      # modes of single subjects
strict: false                      # true: an open schema may also have written fields that it does not name
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tailrace.errors import SchemaError
from tailrace.schemas.compatibility.check import Mode
from tailrace.schemas.folder import COMPATIBILITY
from tailrace.schemas.line_numbers import line_of
from tailrace.yaml_document import read_value

_FIELDS = ("default", "subjects", "strict")


@dataclass(frozen=True, slots=True)
class Modes:
    """The mode of every subject. The default is BACKWARD, as in registries."""

    default: Mode = Mode.BACKWARD
    subjects: dict[str, Mode] = field(default_factory=dict)
    strict: bool = False

    def of(self, subject: str) -> Mode:
        return self.subjects.get(subject, self.default)


def read_modes(folder: Path) -> Modes:
    """Reads the folder's file. Returns the defaults if there is none."""
    file = folder / COMPATIBILITY
    if not file.is_file():
        return Modes()
    text = file.read_bytes()
    try:
        data = read_value(text.decode(), str(file))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise SchemaError(f"{where} is not YAML", remedy=f"Correct {where}.") from None
    if not isinstance(data, dict):
        raise _wrong(file, text, (), "must be settings such as `default: BACKWARD`")
    for name in data:
        if name not in _FIELDS:
            raise _wrong(file, text, (str(name),), f"is not a setting; there are: {', '.join(_FIELDS)}")
    subjects = data.get("subjects", {})
    if not isinstance(subjects, dict):
        raise _wrong(file, text, ("subjects",), "must be a mode by subject, such as {OrderPlaced: FULL}")
    strict = data.get("strict", False)
    if not isinstance(strict, bool):
        raise _wrong(file, text, ("strict",), "must be true or false")
    return Modes(
        _mode(file, text, ("default",), data.get("default", Mode.BACKWARD)),
        {str(name): _mode(file, text, ("subjects", str(name)), mode) for name, mode in subjects.items()},
        strict,
    )


def _mode(file: Path, text: bytes, place: tuple[str, ...], given: object) -> Mode:
    try:
        return Mode(str(given))
    except ValueError:
        raise _wrong(file, text, place, f"must be one of {', '.join(Mode)}, not {str(given)[:40]!r}") from None


def _wrong(file: Path, text: bytes, place: tuple[str, ...], what: str) -> SchemaError:
    line = line_of(text, place)
    where = f"{file}{f':{line}' if line else ''}"
    return SchemaError(f"{where}: {'.'.join(place) or 'the file'} {what}", remedy=f"Correct {where}.")
