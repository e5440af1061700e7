"""Reads the members, sizes, indexes and newest documents of a MongoDB outbox. Changes nothing."""

from __future__ import annotations

from tailrace.check.doctor.event_sample import EventSample
from tailrace.check.doctor.mongo_rules import CollectionFacts, MongoFacts
from tailrace.check.health_mongo import observer
from tailrace.errors import AccessRefused, TailraceError
from tailrace.event import Row
from tailrace.sources.mongo.client import Client, translated_errors
from tailrace.sources.mongo.documents import CODEC, DocumentConverter
from tailrace.sources.mongo.options import MongoOptions

SAMPLED = 1000
"""The newest documents of each collection, found by the index on _id."""
LIMIT_MS = 8000


def read_mongo_facts(options: MongoOptions) -> MongoFacts:
    with observer(options) as client, translated_errors("reading the state of the collections"):
        return MongoFacts(
            version=tuple(client.server_info()["versionArray"][:3]),
            database=options.database,
            voters=_voters(client),
            collections=tuple(_collection(client, options.database, name) for name in options.collections),
        )


def _voters(client: Client) -> int | None:
    try:
        with translated_errors("reading the configuration of the replica set"):
            config = client.admin.command("replSetGetConfig")["config"]
    except AccessRefused:
        return None
    return sum(1 for member in config["members"] if member.get("votes", 1))


def _collection(client: Client, database: str, name: str) -> CollectionFacts:
    documents = size = 0
    indexes: tuple[tuple[str, ...], ...] | None = None
    try:
        with translated_errors("reading the size of a collection"):
            stats = client[database].command({"collStats": name, "maxTimeMS": LIMIT_MS})
            documents, size = int(stats.get("count", 0)), int(stats.get("size", 0))
    except AccessRefused:
        pass
    try:
        with translated_errors("reading the indexes of a collection"):
            listed = client[database].command({"listIndexes": name, "maxTimeMS": LIMIT_MS})["cursor"]["firstBatch"]
            indexes = tuple(tuple(each["key"]) for each in listed)
    except TailraceError:
        pass  # there is no such collection, which has its own check, or no right to read them
    return CollectionFacts(name, documents, size, indexes)


def sample_documents(options: MongoOptions) -> EventSample:
    """Reads the newest documents, as the source reads them."""
    convert = DocumentConverter.of(options)
    rows: list[tuple[Row, int]] = []
    with observer(options) as client:
        for name in options.collections:
            question = {"find": name, "sort": {"_id": -1}, "limit": SAMPLED, "batchSize": SAMPLED}
            with translated_errors("reading the newest documents"):
                answer = client[options.database].command({**question, "maxTimeMS": LIMIT_MS}, codec_options=CODEC)
            rows += [(convert.row(document, "", 0), 1) for document in answer["cursor"]["firstBatch"]]
    return EventSample(rows, f"the newest {SAMPLED:,} documents of each collection")
