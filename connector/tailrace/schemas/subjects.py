"""Names that schemas can be registered under.

A subject is derived from the event's type, which the service chooses, and becomes part of a registry's URLs. Invalid
ones are rejected without a request.
"""

from __future__ import annotations

import re
import unicodedata

SUBJECT_CHARS = 1300
"""Room for a type and a topic of the maximum length, and the template around them."""

_is_plain = re.compile(r"[A-Za-z0-9_.:$-]+").fullmatch


def subject_flaw(subject: str) -> str | None:
    """Returns why no schema can be registered under `subject`, or None if one can."""
    if not subject:
        return "it is empty"
    if subject in {".", ".."}:
        return "in a URL, . and .. are path segments"
    if len(subject) > SUBJECT_CHARS:
        return f"it has {len(subject):,} characters, {SUBJECT_CHARS:,} are allowed"
    if any(unicodedata.category(character) == "Cc" for character in subject):
        return "it contains a control character"
    return None


def is_plain(subject: str) -> bool:
    """Whether every registry and proxy accepts `subject` in a URL unchanged."""
    return _is_plain(subject) is not None
