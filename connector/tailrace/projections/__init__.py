"""Projections: Faust apps that apply each event exactly once, despite crashes, rebalances, replays and duplicates.

See `docs/projections.md`. Names are imported on first use: nobody needs all database drivers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrace.projections.core.agent_events import AgentEvent, EventBatch
    from tailrace.projections.core.event import Event
    from tailrace.projections.core.registry_decoder import RegistryDecoder
    from tailrace.projections.core.versions import Versions
    from tailrace.projections.faust.app import ProjectionApp, projection_app
    from tailrace.projections.mongo.effects import MongoEffects
    from tailrace.projections.mongo.store import MongoStore
    from tailrace.projections.postgres.effects import PostgresEffects
    from tailrace.projections.postgres.store import PostgresStore
    from tailrace.projections.projection import Projection
    from tailrace.projections.rocksdb.effects import RocksEffects
    from tailrace.projections.rocksdb.store import RocksStore
    from tailrace.projections.testing import ProjectionTester

_MODULES = {
    "AgentEvent": "core.agent_events",
    "Event": "core.event",
    "EventBatch": "core.agent_events",
    "MongoEffects": "mongo.effects",
    "MongoStore": "mongo.store",
    "PostgresEffects": "postgres.effects",
    "PostgresStore": "postgres.store",
    "Projection": "projection",
    "ProjectionApp": "faust.app",
    "RegistryDecoder": "core.registry_decoder",
    "ProjectionTester": "testing",
    "RocksEffects": "rocksdb.effects",
    "RocksStore": "rocksdb.store",
    "Versions": "core.versions",
    "projection_app": "faust.app",
}
__all__ = [
    "AgentEvent",
    "Event",
    "EventBatch",
    "MongoEffects",
    "MongoStore",
    "PostgresEffects",
    "PostgresStore",
    "Projection",
    "ProjectionApp",
    "ProjectionTester",
    "RegistryDecoder",
    "RocksEffects",
    "RocksStore",
    "Versions",
    "projection_app",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - mypy takes the types from above
    """Imports a name on first use."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        extra = {
            "pymongo": "mongo",
            "bson": "mongo",
            "rocksdict": "rocksdb",
            "faust": "faust",
            "aiokafka": "faust",
            "mode": "faust",
        }.get(library)
        if extra is None:
            raise
        from tailrace.errors import install_remedy

        raise ImportError(
            f"tailrace.projections.{name} needs {library}, which is not installed. {install_remedy(extra)}."
        ) from None
