"""Versions of schemas: a whole number (2) or major.minor.patch (1.4.0), ordered numerically.

A whole number N and N.0.0 are the same version, so a folder may have one of them, and an event may write either. A
version keeps the text that it was written with. Events carry a version as text; texts are parsed once, and schemas are
found by text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tailrace.errors import SchemaVersionInvalid

FIRST_VERSION = "1.0.0"
"""The version of an event without one, in layouts that say so."""
ANNOTATION = "x-version"
"""The member of a schema document that states its version where only numbers are given out: in registries."""
FORM = "A version is a whole number such as 2, or major.minor.patch such as 1.4.0: digits without leading zeros."

LONGEST = 29
"""Characters of the longest version: three numbers of nine digits."""

_NUMBER = "(0|[1-9][0-9]{0,8})"
_match = re.compile(rf"{_NUMBER}(?:\.{_NUMBER}\.{_NUMBER})?", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version of a schema. Compared by its numbers, not by its text."""

    major: int
    minor: int = 0
    patch: int = 0
    text: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.text:
            full = f"{self.major}.{self.minor}.{self.patch}"
            object.__setattr__(self, "text", str(self.major) if self.whole else full)

    def __str__(self) -> str:
        return self.text

    @property
    def whole(self) -> bool:
        """Whether it is N.0.0, and so the same as N."""
        return not self.minor and not self.patch

    @property
    def spellings(self) -> tuple[str, ...]:
        """All texts that mean this version."""
        full = f"{self.major}.{self.minor}.{self.patch}"
        return (str(self.major), full) if self.whole else (full,)

    def next(self) -> Version:
        """Returns the next minor version, or the next number if this one was written as a whole number."""
        if "." in self.text:
            return Version(self.major, self.minor + 1, 0, f"{self.major}.{self.minor + 1}.0")
        return Version(self.major + 1)


def parse_version(text: str) -> Version | None:
    """Returns the version that `text` means, or None if it is not a version."""
    # An event may contain any text: long ones must not fill the cache.
    return _parse(text) if len(text) <= LONGEST else None


@lru_cache(maxsize=4096)
def _parse(text: str) -> Version | None:
    match = _match(text)
    if match is None:
        return None
    major, minor, patch = (int(part or 0) for part in match.groups())
    return Version(major, minor, patch, text) if major or minor or patch else None


def require_version(text: str, where: str, *, remedy: str) -> Version:
    """Returns the version that `text` means. Raises SchemaVersionInvalid, which names `where` it was found."""
    version = parse_version(text)
    if version is None:
        raise SchemaVersionInvalid(f"{where}: {text[:80]!r} is not a version", why=FORM, remedy=remedy)
    return version


def version_at(document: object, path: Sequence[str], *, absent: str | None = None) -> str | None:
    """Returns the text of the version at `path` of a JSON document; `absent` if there is none.

    None means the latest version. A layout whose events are of version 1.0.0 unless they state another one passes
    `absent=FIRST_VERSION`. The text may be anything: validation rejects an event whose version is not one.
    """
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return absent if document is None else str(document)


def stated_version(document: object) -> Version | None:
    """Returns the version that a schema document states in `x-version`; None if it states none."""
    text = document.get(ANNOTATION) if isinstance(document, dict) else None
    return parse_version(text) if isinstance(text, str) else None
