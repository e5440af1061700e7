"""The verdict: compares the documents of an outbox with entities, Kafka records, statuses and markers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from examples.example import Finding
from tailrace.testkit.oracle import ConsumedRecord, WriteOutcome, WrittenEvent, check_delivery

Document = Mapping[str, Any]


def delivery(
    written: Sequence[WrittenEvent],
    documents: Sequence[Document],
    published: Sequence[ConsumedRecord],
    dead: Sequence[ConsumedRecord],
    stale: Collection[str],
    invalid: Collection[str],
) -> Finding:
    """Compares with Kafka: each committed event exactly once, none that was rolled back, in order per entity.

    `written` is what the workload recorded; other documents are committed. `stale` are old versions that were added
    again on purpose, `invalid` users whose events break their schema.
    """
    known = {event.id for event in written}
    others = [
        WrittenEvent(each["event_id"], each["entity_id"], each["entity_version"], valid, WriteOutcome.COMMITTED)
        for each in documents
        if each["event_id"] not in known
        for valid in [each["entity_id"] not in invalid]
    ]
    found = check_delivery([*written, *others], published, dead, in_table={each["event_id"] for each in documents})
    wrong = [*found.missing, *found.duplicated, *found.phantom, *found.misplaced]
    wrong += [event for event in found.out_of_order if event not in stale]
    return Finding(
        f"{found.committed} events committed, {found.rolled_back} rolled back; on Kafka {found.published} records, "
        f"{found.dead_lettered} dead letters, once each, in order per user",
        wrong,
    )


def statuses(
    documents: Sequence[Document], published: Sequence[ConsumedRecord], dead: Sequence[ConsumedRecord]
) -> Finding:
    """Compares with the status fields: `published` is on Kafka, `failed` is a dead letter, and no other is left."""
    records, letters = {each.id for each in published}, {each.id for each in dead}
    wrong: list[str] = []
    for each in documents:
        if each["event_id"] in letters:
            good = each["status"] == "failed" and each["retry_count"] == 1 and each.get("last_error")
        else:
            good = each["status"] == "published" and each.get("published_at") and each["event_id"] in records
        if not good:
            wrong.append(f"{each['event_id']} is {each['status']}")
    failed = sum(each["status"] == "failed" for each in documents)
    return Finding(f"statuses: {len(documents) - failed} published, {failed} failed", wrong)


def entities(
    documents: Sequence[Document], users: Mapping[str, int], stale: Collection[str], invalid: Collection[str]
) -> Finding:
    """Compares with the users: their events are numbered 1, 2, 3 … up to the user's revision."""
    versions: dict[str, list[int]] = {}
    deleted: set[str] = set()
    for each in documents:
        if each["event_id"] in stale or each["entity_id"] in invalid:
            continue
        versions.setdefault(each["entity_id"], []).append(each["entity_version"])
        if each["payload"] is None:
            deleted.add(each["entity_id"])
    wrong = [user for user, found in versions.items() if sorted(found) != list(range(1, len(found) + 1))]
    wrong += [user for user in versions.keys() | users.keys() if users.get(user) != _revision(user, versions, deleted)]
    return Finding(f"{len(users)} users, {len(deleted)} deleted, with an event for each revision", wrong)


def _revision(user: str, versions: Mapping[str, list[int]], deleted: Collection[str]) -> int | None:
    return None if user in deleted else len(versions.get(user, ())) or None


def processed(published: Sequence[ConsumedRecord], markers: Sequence[Document], stale: Collection[str]) -> Finding:
    """Compares with the markers of the projection: each record has one, and only old versions are stale."""
    expected = {each.id: "stale" if each.id in stale else "applied" for each in published}
    found = {each["event_id"]: each["outcome"] for each in markers}
    wrong = [event for event in expected.keys() | found.keys() if expected.get(event) != found.get(event)]
    if len(markers) != len(found):
        wrong.append("an event has several markers")
    applied = sum(outcome == "applied" for outcome in found.values())
    return Finding(f"processed_events: {applied} applied, {len(found) - applied} skipped as stale", wrong)
