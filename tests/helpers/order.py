"""The order of the files: such that the processor is busy all the time, and none of them waits for the last one.

Tests of faults mostly wait, tests of single parts compute, and the others do both. One kind after the other, the
processor would idle first and be short later. So each kind is spread over the run; those that take long begin it, and
small ones end it.
"""

from __future__ import annotations

import gc

import pytest

SPANS = {"faults": (0.0, 0.9), "integration": (0.0, 0.8), "unit": (0.1, 1.0)}
"""From when to when in the run a kind of tests is spread: the folder below `tests`."""
LONG = ("test_kill_loop.py", "test_demo.py", "test_examples.py", "test_archive.py", "test_resources.py")
"""A file is one worker's: these take minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    by_kind: dict[str, dict[str, None]] = {}
    for item in items:
        kind = next((part for part in item.path.parts if part in SPANS), "unit")
        by_kind.setdefault(kind, {})[str(item.path)] = None
    places: dict[str, float] = {}
    for kind, files in by_kind.items():
        begin, end = SPANS[kind]
        for index, file in enumerate(files):
            places[file] = -1.0 if file.endswith(LONG) else begin + (end - begin) * index / len(files)
    items.sort(key=lambda item: places[str(item.path)])


def pytest_collection_finish() -> None:
    """What was collected stays to the end: it need not be looked at for garbage again and again."""
    gc.collect()
    gc.freeze()
