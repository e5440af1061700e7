"""Document: a schema together with everything it refers to. Problem: why two of them do not fit.

Comparing two versions must open no file and no connection, so whoever asks hands over what the schema refers to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.schemas.strict_json import Json


class Problem(NamedTuple):
    """One reason why a reader cannot take what a writer wrote."""

    place: str
    """A JSON pointer into the reader's schema, `#/properties/total`; in another document, after its address."""
    what: str
    """A sentence whose subject is that place: "is required in the new version, but not in version 1"."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A parsed schema and what it refers to."""

    schema: Json
    base_uri: str = ""
    """What relative references start from, such as `OrderPlaced/1.json`. Avro needs none."""
    resources: Mapping[str, Json] = field(default_factory=dict)
    """Other documents. JSON Schema: by the address that a reference leads to, `Address/1.json`. Avro: schemas whose
    named types may be used; their keys do not matter."""


class Incomparable(Exception):
    """A comparison that cannot be finished: the schema is broken, or too large to decide about."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(what)
        self.problem = Problem(place, what)
