"""Compares the mirror with what the mempool has accepted, field by field."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import bson

from examples.transaction_mirror.document import document_of
from examples.transaction_mirror.transactions import decode, transaction
from tailrace.embedded import Entry

FIELDS = 23


def differences(documents: list[dict[str, Any]], seed: int, chain_id: str) -> list[str]:
    """Returns the hashes of documents that are not those of the generator's transactions."""
    return [each["_id"] for each in documents if not _is_right(each, seed, chain_id)]


def _is_right(document: dict[str, Any], seed: int, chain_id: str) -> bool:
    raw = bytes(document["raw_transaction"])
    found = decode(raw)
    if found != transaction(seed, int(document["nonce"], 16), found.arrived_ms):
        return False
    expected = bson.decode(bson.encode(document_of(Entry(0, found.hash.encode(), raw, 0), chain_id)))
    return len(document) == FIELDS and _comparable(document) == _comparable(expected)


def _comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the document without the time at which it was inserted, which must be there."""
    inserted = document.get("inserted_at")
    return {**document, "inserted_at": isinstance(inserted, datetime)}
