"""Document: a schema together with everything it refers to. Problem: why two of them are incompatible.

A comparison opens no file and no connection, so the caller provides what the schema refers to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.schemas.strict_json import Json


class Problem(NamedTuple):
    """One reason why a reader may reject what a writer wrote."""

    place: str
    """A JSON pointer into the reader's schema, `#/properties/total`; in another document, after its address."""
    what: str
    """A sentence whose subject is that place: "is required in the new version, but not in version 1"."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A parsed schema and the documents it refers to."""

    schema: Json
    base_uri: str = ""
    """The address that relative references start from, such as `OrderPlaced/1.json`. Not used for Avro."""
    resources: Mapping[str, Json] = field(default_factory=dict)
    """Other documents. JSON Schema: by address, such as `Address/1.json`. Avro: schemas that define named types; the
    keys do not matter."""


class Incomparable(Exception):
    """The schemas cannot be compared: one is invalid, or too large to decide about."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(what)
        self.problem = Problem(place, what)
