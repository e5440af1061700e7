"""Applies a change of helpers/mutations.py to the real code for the time of a block."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def sabotaged(code: str) -> Iterator[None]:
    """Runs `code`, which replaces attributes of classes and modules of Tailrace; puts all of them back at the end."""
    space: dict[str, Any] = {}
    owners: list[Any] = [module for name, module in sys.modules.items() if name.startswith("tailrace.")]
    owners += {
        id(value): value
        for module in list(owners)
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__.startswith("tailrace.")
    }.values()
    before = [(owner, dict(vars(owner))) for owner in owners]
    exec(compile(code, "<mutation>", "exec"), space)
    try:
        yield
    finally:
        for owner, attributes in before:
            for name, value in list(vars(owner).items()):
                if name not in attributes:
                    delattr(owner, name)
                elif value is not attributes[name]:
                    setattr(owner, name, attributes[name])
