"""What Kafka accepts as a topic's name, and what a name may look like that we choose ourselves."""

from __future__ import annotations

import re

TOPIC_CHARS = 249
"""Kafka's own limit: a directory name of 255 less the partition suffix."""

_legal = re.compile(r"[a-zA-Z0-9._-]+").fullmatch


def topic_flaw(name: str) -> str | None:
    """Why `name` cannot be written to, or None if it can."""
    if not name:
        return "it is empty"
    if len(name) > TOPIC_CHARS:
        return f"it has {len(name)} characters, Kafka allows {TOPIC_CHARS}"
    if name in {".", ".."}:
        return "Kafka keeps . and .. for itself"
    if name.startswith("__"):
        return "names that start with __ are Kafka's internal topics"
    if _legal(name) is None:
        return "only letters, digits, '.', '_' and '-' are allowed"
    return None
