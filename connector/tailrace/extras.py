"""How to install an optional part of Tailrace: the remedy of every error about a missing library."""

from __future__ import annotations


def install(extra: str) -> str:
    """A command that works from a checkout; there is no release on a package index yet."""
    return f"In a checkout of Tailrace run pip install '.[{extra}]'"
