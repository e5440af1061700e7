"""The outbox: table layouts, the SQL that creates a table, and the writer for services (`Outbox`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.outbox.writer.event import NewEvent
    from tailrace.outbox.writer.outbox import Outbox
    from tailrace.outbox.writer.pressure import Brake, Pressure
    from tailrace.outbox.writer.receipt import Receipt

__all__ = ["Brake", "NewEvent", "Outbox", "Pressure", "Receipt"]

_MODULES = {
    "Brake": "pressure",
    "NewEvent": "event",
    "Outbox": "outbox",
    "Pressure": "pressure",
    "Receipt": "receipt",
}


def __getattr__(name: str) -> object:
    """Imports the writer when it is first used: the connector does not need it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tailrace.outbox.writer.{_MODULES[name]}"), name)
