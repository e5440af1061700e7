"""Resolves references in settings: `${env:NAME}`, `${file:/path}`, `${file:/path:key}`, `${dir:/path:file}`, and `$${`.

`$${` stands for a plain `${`. `${dir:/path:file}` is the way in which Kafka Connect names a file of a folder.

They are resolved after the file is parsed, so that a secret can neither break the YAML nor appear in its errors. A
reference that cannot be resolved is an error and never an empty text: an empty password would be sent to the server.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_TOKEN = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)(?P<end>\}?)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOW = "write ${env:NAME}, ${file:/path}, ${file:/path:key} or ${dir:/path:file}, and $${ for a plain ${"
MAX_BYTES = 1 << 20
"""The maximum size of a file."""


class UnresolvedError(Exception):
    """A reference that cannot be resolved: `why`, and the `remedy`. The loader adds file and setting."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


class SecretReference(NamedTuple):
    """A reference in a text: `kind` is env or file, `name` the variable or the path."""

    kind: str
    name: str


Fit = Callable[[str, str, str], str]


def _unchanged(value: str, _before: str, _after: str) -> str:
    return value


def has_reference(text: str) -> bool:
    """Whether the text contains a reference or an escape."""
    return "${" in text


def without_references(text: str, instead: str) -> str:
    """Replaces references by a text, and escapes by what they stand for."""
    return _TOKEN.sub(lambda token: "${" if token[0] == "$${" else instead, text)


def found_references(text: str) -> Iterator[SecretReference]:
    """Yields the references of a text, without those that cannot be resolved anyway."""
    for token in _TOKEN.finditer(text):
        kind, _, rest = (token["body"] or "").partition(":")
        if kind == "env":
            yield SecretReference(kind, rest)
        elif kind == "file" and rest:
            yield SecretReference("file", _path_and_key(rest)[0])
        elif kind == "dir" and rest:
            folder, _, name = rest.rpartition(":")
            yield SecretReference("file", f"{folder}/{name}")


def resolve(text: str, environ: Mapping[str, str], folder: Path, fit: Fit = _unchanged) -> str:
    """Replaces the references in a text; paths are relative to `folder`.

    `fit` gets each value with the text before and after its reference, and may escape it.
    """

    def value(token: re.Match[str]) -> str:
        return "${" if token[0] == "$${" else fit(found(token), text[: token.start()], text[token.end() :])

    def found(token: re.Match[str]) -> str:
        if not token["end"]:
            raise UnresolvedError("a reference is not closed with }", _HOW)
        kind, _, rest = token["body"].partition(":")
        if kind == "env" and _VARIABLE.fullmatch(rest):
            return _variable(rest, environ)
        if kind == "file" and rest:
            return _file(rest, folder)
        if kind == "dir" and (parts := rest.rpartition(":"))[0] and parts[2] and "/" not in parts[2]:
            return _file(f"{parts[0]}/{parts[2]}", folder)
        raise UnresolvedError(f"{token[0]} is not a known reference", _HOW)

    return _TOKEN.sub(value, text)


def _variable(name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise UnresolvedError(f"the environment variable {name} is not set", f"set {name} where Tailrace is started")
    if not environ[name]:
        raise UnresolvedError(f"the environment variable {name} is empty", f"give {name} a value")
    return environ[name]


def _file(rest: str, folder: Path) -> str:
    name, key = _path_and_key(rest)
    try:
        text = _read(folder / name).decode()
    except OSError as error:
        raise UnresolvedError(
            f"the file {name} cannot be read ({error.strerror or type(error).__name__})",
            f"create {name}, or let the user that runs Tailrace read it",
        ) from error
    except UnicodeDecodeError as error:
        raise UnresolvedError(f"the file {name} is not text in UTF-8", f"store {name} as plain text") from error
    except ValueError as error:
        raise UnresolvedError(f"the file {name!r} cannot be read: {error}", "correct the path") from error
    value = _entry(text, key, name) if key else text.strip()
    if not value:
        raise UnresolvedError(f"the file {name} has an empty value", f"put the value into {name}")
    return value


def _path_and_key(rest: str) -> tuple[str, str]:
    # A colon separates the key, unless what follows it is more path.
    name, colon, key = rest.rpartition(":")
    return (name, key) if colon and "/" not in key and name else (rest, "")


def _read(path: Path) -> bytes:
    """Reads a small regular file. Anything else could block or never end; whoever may send settings may name it."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if found.st_size > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        return os.read(file, MAX_BYTES)
    finally:
        os.close(file)


def _entry(text: str, key: str, name: str) -> str:
    """Returns the value of `key` in `key=value` lines; the last line wins, as in a properties file."""
    entries = [line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#")]
    values = [value.strip() for found, equals, value in entries if equals and found.strip() == key]
    if not values:
        raise UnresolvedError(f"the file {name} has no line {key}=…", f"add a line {key}=… to {name}")
    return values[-1]
