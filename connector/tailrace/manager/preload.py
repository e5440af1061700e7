"""Imported once by the warm process from which pipeline processes are forked, so that they share its memory.

Objects that exist now are exempt from garbage collection, which would write to them and so copy their memory into each
forked process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib

from tailrace.worker.memory import use_one_heap

MODULES = (
    "tailrace.manager.process",
    "tailrace.sources.mongo.source",
    "tailrace.recovery.apply",
    "tailrace.cli.preload",
)
"""What pipeline processes and commands need, if it is installed."""

use_one_heap()
for _module in MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)
gc.collect()
gc.freeze()
