"""Rules over a MongoDB server and the indexes of the outbox. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.check.findings import advice, mongosh, note, settings, warning
from tailrace.check.mongo_rules import create_index
from tailrace.check.result import CheckResult, human_bytes
from tailrace.check.versions import known_bugs, shown

FEW_DOCUMENTS = 10_000
LARGE_BYTES = 10 << 30


@dataclass(frozen=True, slots=True)
class CollectionFacts:
    """A collection of the outbox. `indexes` has the fields of each index in order; None if they may not be read."""

    name: str
    documents: int = 0
    bytes: int = 0
    indexes: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class MongoFacts:
    """`voters` is the number of members that vote; None if it may not be read."""

    version: tuple[int, ...]
    database: str
    voters: int | None
    collections: tuple[CollectionFacts, ...]


def check_mongo_facts(
    facts: MongoFacts, uses: Mapping[tuple[str, ...], str], file: str, *, deletes: bool
) -> list[CheckResult]:
    """All findings. `uses` maps the fields of an index to what needs it."""
    found: list[CheckResult] = []
    for bug, fixed in known_bugs("MongoDB", facts.version):
        fix = advice(f"Upgrade to {fixed} or newer, a minor upgrade.")
        found.append(warning(bug.code, f"{shown(facts.version)} {bug.effect} ({bug.link})", fix))
    if facts.voters == 1:
        fix = advice("Start two more servers with the same replSetName, and add each with rs.add() in mongosh.")
        found.append(note("mongo-single-member", "the replica set has one member with a vote", fix))
    for collection in facts.collections:
        found += _indexes(facts.database, collection, uses)
        if not deletes and collection.bytes > LARGE_BYTES:
            what = f"{facts.database}.{collection.name} has about {collection.documents:,} documents, "
            fixes = [settings(file, {"retention": {"after": "30d"}}), advice("Then run `tailrace retention run`.")]
            what += f"{human_bytes(collection.bytes)}, and the pipeline has no retention"
            found.append(note("outbox-size", what, *fixes))
    return found


def _indexes(database: str, collection: CollectionFacts, uses: Mapping[tuple[str, ...], str]) -> Sequence[CheckResult]:
    if collection.indexes is None:
        return []
    found = []
    missing: set[str] = set()
    for fields, purpose in uses.items():
        if fields[0] in missing or any(index[:1] == fields[:1] for index in collection.indexes):
            continue
        missing.add(fields[0])
        what = f"{database}.{collection.name} has no index on {', '.join(fields)}, which {purpose} needs"
        fix = mongosh(create_index(database, collection.name, dict.fromkeys(fields, 1)))
        report = warning if collection.documents > FEW_DOCUMENTS else note
        found.append(report("mongo-index-missing", what, fix))
    return found
