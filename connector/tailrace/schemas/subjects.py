"""Which names schemas can be registered under.

A subject is made of an event's type, which the service chooses, and becomes a part of a registry's addresses. What
cannot be one is known without asking.
"""

from __future__ import annotations

import re
import unicodedata

SUBJECT_CHARS = 1300
"""A type and a topic of the greatest length, and what a template puts around them."""

_is_plain = re.compile(r"[A-Za-z0-9_.:$-]+").fullmatch


def subject_flaw(subject: str) -> str | None:
    """Why no schema can be registered under `subject`, or None if one can."""
    if not subject:
        return "it is empty"
    if subject in {".", ".."}:
        return "in an address, . and .. stand for places"
    if len(subject) > SUBJECT_CHARS:
        return f"it has {len(subject):,} characters, {SUBJECT_CHARS:,} are allowed"
    if any(unicodedata.category(character) == "Cc" for character in subject):
        return "it contains a control character"
    return None


def is_plain(subject: str) -> bool:
    """Whether every registry, and every proxy in front of one, takes `subject` in an address as it is."""
    return _is_plain(subject) is not None
