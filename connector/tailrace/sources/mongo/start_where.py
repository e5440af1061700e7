"""Checks `source.start_where` against the server, and builds the filters that follow from it."""

from __future__ import annotations

from bson import json_util
from bson.datetime_ms import DatetimeMS
from bson.objectid import ObjectId
from pymongo.errors import ExecutionTimeout, OperationFailure

from tailrace.errors import StartWhereInvalid
from tailrace.positions.first_read import FirstRead
from tailrace.positions.mongo import TokenPosition
from tailrace.sources.mongo.client import Client, server_text, translated_errors
from tailrace.sources.mongo.documents import STRICT, Document
from tailrace.sources.mongo.filters import filter_text
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.start_where import require_same

DOING = "checking source.start_where"
COUNT_MS = 5000
REFUSED = {2, 9, 14, 51, 168}
"""BadValue, FailedToParse, TypeMismatch and others about the filter itself."""


def parsed(where: str) -> Document:
    """Returns the filter of a stored text; empty for all documents."""
    found: Document = json_util.loads(where, json_options=STRICT) if where else {}
    return found


def require_valid(client: Client, database: str, collections: tuple[str, ...], where: str) -> None:
    """Raises StartWhereInvalid if the server does not accept the filter. Plans the query without running it."""
    try:
        wanted = parsed(filter_text(where))
    except (ValueError, TypeError) as error:
        raise invalid(where, str(error)) from None
    for collection in collections:
        query = {"find": collection, "filter": wanted, "limit": 1}
        with translated_errors(DOING):
            try:
                client[database].command({"explain": query, "verbosity": "queryPlanner"})
            except OperationFailure as error:
                if error.code in REFUSED:
                    raise invalid(where, server_text(error)) from None
                raise


def count_documents(client: Client, database: str, collections: tuple[str, ...], where: str) -> tuple[int, int] | None:
    """Returns how many documents the filter selects, and how many there are; None if that takes too long."""
    selected = total = 0
    with translated_errors(DOING):
        try:
            for name in collections:
                found = client[database][name]
                selected += found.count_documents(parsed(where), maxTimeMS=COUNT_MS)
                total += found.count_documents({}, maxTimeMS=COUNT_MS)
        except ExecutionTimeout:
            return None
    return selected, total


def require_unchanged(stored: TokenPosition | None, options: MongoOptions) -> None:
    """Raises if a first read is under way with another filter."""
    if stored is not None and stored.collection_read is not None:
        require_same(stored.collection_read.where, options.start_where, is_default=options.default_where)


def invalid(where: str, why: str) -> StartWhereInvalid:
    return StartWhereInvalid(
        f"source.start_where cannot be used: {where[:200]}",
        why=why[:1].upper() + why[1:] + ".",
        remedy="Write a filter that compares fields with constants, such as {status: {$ne: published}}.",
    )


def left_out_filter(first_read: FirstRead, timestamp: str | None) -> Document:
    """Returns the filter for documents that the first read has left out: created before it, and not selected.

    The time of a document is that of `created_ms`: the field `timestamp` if it is a date, else that of an ObjectId.
    """
    # An ObjectId has whole seconds.
    made: Document = {"_id": {"$type": "objectId", "$lt": ObjectId(f"{first_read.at_ms // 1000 + 1:08x}" + "0" * 16)}}
    created = made
    if timestamp:
        by_field = {timestamp: {"$type": "date", "$lte": DatetimeMS(first_read.at_ms)}}
        created = {"$or": [by_field, {timestamp: {"$not": {"$type": "date"}}, **made}]}
    return {"$and": [{"$nor": [parsed(first_read.where)]}, created]}


def uncertain_filter(first_read: FirstRead, timestamp: str | None) -> Document:
    """Returns the filter for documents that are not selected, and of which no time shows when they were created."""
    untimed: Document = {"_id": {"$not": {"$type": "objectId"}}}
    if timestamp:
        untimed[timestamp] = {"$not": {"$type": "date"}}
    unselected: Document = {"$nor": [parsed(first_read.where)]}
    return {"$and": [unselected, untimed]} if first_read.at_ms else unselected
