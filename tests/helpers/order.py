"""Orders the test files so that the processor is busy during the whole run and no long file starts last.

Fault tests mostly wait, unit tests compute, integration tests do both. Each kind is spread over the run; the longest
files come first and small ones last.
"""

from __future__ import annotations

import gc

import pytest

SPANS = {"faults": (0.0, 0.9), "integration": (0.0, 0.8), "unit": (0.1, 1.0)}
"""The part of the run over which the tests of a folder are spread."""
LONG = (
    "test_package.py",
    "test_deploy_image.py",
    "test_worker_kills.py",
    "test_kill_loop.py",
    "test_chaos.py",
    "test_drill.py",
    "test_demo.py",
    "test_examples.py",
    "test_archive.py",
    "test_resources.py",
    "faults/test_worker.py",
    "test_deploy_shop.py",
    "integration/test_verify.py",
    "test_rewind.py",
    "test_table_changes.py",
    "test_check_mongo.py",
    "test_doctor.py",
)
"""Files that take more than a minute; each file is run by one worker."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    by_kind: dict[str, dict[str, None]] = {}
    for item in items:
        kind = next((part for part in item.path.parts if part in SPANS), "unit")
        by_kind.setdefault(kind, {})[str(item.path)] = None
    positions: dict[str, float] = {}
    for kind, files in by_kind.items():
        begin, end = SPANS[kind]
        for index, file in enumerate(files):
            positions[file] = -1.0 if file.endswith(LONG) else begin + (end - begin) * index / len(files)
    items.sort(key=lambda item: positions[str(item.path)])


def pytest_sessionstart() -> None:
    """Turns garbage collection off for the time in which almost everything that is made stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempts the collected items from garbage collection: they stay until the end."""
    gc.enable()
    gc.collect()
    gc.freeze()
