"""Which collections a projection works in: those in their place, or those that are being made anew beside them.

Made anew, a collection has its name with `__next<number>` behind it, until it is renamed (`mongo_swap.py`). A number is
used once, so a rename that comes late, from whoever was stopped and goes on, finds nothing to rename.

Handlers name collections as ever. What they write must be declared, since nothing else is made anew and renamed; what
is not declared is somebody else's, and is read as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection

from tailrace.errors import ConfigError
from tailrace.projections.mongo.client import Database, Document, own

NEXT = "__next"


def shadow_name(name: str, number: int) -> str:
    return f"{name}{NEXT}{number}"


class Generation:
    """`number` is that of the rebuild it is made by, None for what is in its place."""

    def __init__(self, database: Database, declared: Collection[str] = (), number: int | None = None) -> None:
        self.database = database
        self.number = number
        self._declared = declared

    def own(self, name: str) -> AsyncCollection[Document]:
        """A collection of the kit's own."""
        return own(self.database, self._named(name))

    def to_read(self, name: str) -> AsyncCollection[Document]:
        return self.database[self._seen(name)]

    def to_write(self, name: str) -> AsyncCollection[Document]:
        if self.number is not None and name not in self._declared:
            raise ConfigError(
                f"a handler writes to {name}, which its MongoStore does not declare",
                why="Only what is declared is made anew beside the old one: this would change the one that is read.",
                remedy=f'Give the MongoStore collections={{"{name}": []}}, with its indexes in the list.',
            )
        return self.database[self._named(name)]

    def pipeline(self, stages: Sequence[Mapping[str, Any]]) -> list[Document]:
        """The same stages, with the collections that they read by name."""
        return [{operator: self._stage(operator, given) for operator, given in stage.items()} for stage in stages]

    def _stage(self, operator: str, given: Any) -> Any:  # noqa: ANN401 - whatever the stage takes
        if not isinstance(given, Mapping):
            return given
        if operator == "$facet":
            return {name: self.pipeline(stages) for name, stages in given.items()}
        if operator not in ("$lookup", "$graphLookup"):
            return given  # of others that name a collection, none is allowed in a transaction
        named = {"from": self._seen(given["from"])} if isinstance(given.get("from"), str) else {}
        nested = {"pipeline": self.pipeline(given["pipeline"])} if "pipeline" in given else {}
        return {**given, **named, **nested}

    def _seen(self, name: str) -> str:
        return self._named(name) if name in self._declared else name

    def _named(self, name: str) -> str:
        return name if self.number is None else shadow_name(name, self.number)
