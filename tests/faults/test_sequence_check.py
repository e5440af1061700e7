"""The check of sequence numbers in a running pipeline: gaps, repeats and replays, across kill -9 and a rewind."""

from __future__ import annotations

import json
import uuid

import pytest

from helpers.command import Tailrace
from helpers.shop import Shop
from helpers.users import Users
from tailrace import failpoints
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all


def add(shop: Shop, *revisions: int, key: str = "k", replay_of: str | None = None) -> None:
    for revision in revisions:
        payload = json.dumps({"order": key, "revision": revision, "amount": 1, "currency": "EUR"})
        shop.execute(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, replay_of) "
            "VALUES (%s, 'order', %s, 'OrderPlaced', %s, %s)",
            str(uuid.uuid4()), key, payload, replay_of,
        )  # fmt: skip


def revisions(shop: Shop, topic: str, key: str = "k", *, replayed: bool = False) -> list[int]:
    return [
        json.loads(found.value() or b"{}")["revision"]
        for found in read_all(shop.kafka.bootstrap, [topic])
        if found.key() == key.encode() and bool(header(found, "tailrace.replay")) == replayed
    ]


def test_gaps_and_repeats_across_kills_and_a_rewind(shop: Shop, tailrace: Tailrace) -> None:
    shop.execute("ALTER TABLE outbox ADD replay_of text")
    shop.configure(
        source={"replay_window": "1 GiB"}, rules={"sequence": {"number": "payload#/revision", "replay": "replay_of"}}
    )
    shop.start().stop()
    begin = shop.positions()[-1]
    add(shop, 1, 2, 3)
    # Killed behind the commit: the numbers are stored with the events.
    assert shop.start(kill=failpoints.AFTER_COMMIT).ended() == -9
    connector = shop.start()
    add(shop, 5, 6, 3)
    add(shop, 3, replay_of="e-3")
    add(shop, 9, key="other")
    wait_until(lambda: revisions(shop, shop.topic, "other") == [9], 60, what="the last event")
    assert revisions(shop, shop.topic) == [1, 2, 3, 6, 3]
    letters = read_all(shop.kafka.bootstrap, [shop.letters])
    explanations = [header(each, "tailrace.explanation") or "" for each in letters]
    assert [each.partition(" Remedy")[0].rpartition(": ")[2] for each in explanations] == [
        "5 follows 3, and 4 is missing",
        "3 repeats, after 6",
    ]
    assert {header(each, "tailrace.reason") for each in letters} == {"permanent_failure"}

    # Rewound: everything is published again and passes; the next number still follows the last one.
    assert connector.stop() == 0
    tailrace("position", "reset", shop.file, "--to", str(begin), "--yes")
    shop.start()
    add(shop, 8, 9)
    wait_until(lambda: revisions(shop, shop.topic)[-1] == 9, 60, what="the last event after the rewind")
    assert revisions(shop, shop.topic, replayed=True) == [1, 2, 3, 6, 3]
    assert revisions(shop, shop.letters) == [5, 3, 8]


@pytest.mark.slow
def test_mongo(users: Users) -> None:
    """Rules and sequence numbers of documents: one without a number is dead-lettered alone."""
    checks = {"User*": ["tailrace.rules.storage:names_stores"]}
    users.configure(rules={"sequence": {}})
    users.start()
    for version in (1, 2, 4, 5):
        users.insert("u", version, entity_version=version)
    users.insert("u", 6, entity_version=None)
    wait_until(lambda: len(read_all(users.kafka.bootstrap, [users.letters])) == 2, 60, what="the dead letters")
    published = read_all(users.kafka.bootstrap, [users.topic])
    assert [json.loads(each.value() or b"{}")["revision"] for each in published] == [1, 2, 5]
    users.connectors[-1].stop()
    users.configure(rules={"checks": checks})
    users.insert("u", 6, entity_version=6)
    users.start()
    wait_until(lambda: len(read_all(users.kafka.bootstrap, [users.letters])) == 3, 60, what="the broken rule")
    letters = read_all(users.kafka.bootstrap, [users.letters])
    explanations = [header(each, "tailrace.explanation") or "" for each in letters]
    assert "4 follows 2, and 3 is missing" in explanations[0]
    assert "sequence number in 'entity_version' is missing" in explanations[1]
    assert "must name the stores_involved" in explanations[2]
