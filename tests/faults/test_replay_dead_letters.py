"""Replays and dead letters: one dead letter per event, published once, even if processes are killed."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from confluent_kafka import Producer

from helpers import warm_processes as warm
from helpers.command import Output, Tailrace
from helpers.service import Service
from helpers.shop import SCHEMA, Shop
from helpers.users import Users
from tailrace import failpoints
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

INVALID = '{"order": "a", "revision": 1, "amount": "much", "currency": "EUR"}'
VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
KILLS = (failpoints.AFTER_PRODUCE, failpoints.AFTER_COMMIT)


def let_pass(shop: Shop, **properties: object) -> None:
    """Changes the schema for commands; the pipeline keeps the one it was started with."""
    changed = {**SCHEMA, "properties": {**SCHEMA["properties"], **properties}}
    for kind in ("OrderPlaced", "OrderChanged"):
        (shop.folder / "schemas" / kind / "1.json").write_text(json.dumps(changed))


def letters(service: Service) -> list[str]:
    return [header(each, "id") for each in read_all(service.kafka.bootstrap, [service.letters])]


def replays(shop: Shop, event: str) -> list[str]:
    """Returns the replay header of each record of an event, in order; "" for a record without one."""
    found = read_all(shop.kafka.bootstrap, [shop.topic])
    return [header(each, "tailrace.replay") for each in found if header(each, "id") == event]


def replay(service: Service, tailrace: Tailrace, *arguments: str) -> Output:
    planned = tailrace("replay", "plan", service.file, *arguments)
    return {**planned, **tailrace("replay", "apply", planned["file"])}


@pytest.mark.slow
def test_one_dead_letter_per_event(shop: Shop, tailrace: Tailrace) -> None:
    log, table = ("--from", "oldest"), ("--from", "oldest", "--from-table")
    shop.configure(source={"replay_window": "1 h"})
    shop.start()
    fixed, given_up, left, blocked = (shop.insert(INVALID, key=key) for key in "abcd")
    fine = shop.insert(VALID, key="e")
    wait_until(lambda: len(letters(shop)) == 4 and len(shop.published()) == 1, 60, what="four letters")
    good = shop.folder / "good.json"
    good.write_text(VALID)
    names = {each["event_id"]: each["id"] for each in tailrace("dlq", "list", shop.file)["letters"]}
    tailrace("dlq", "redrive", shop.file, names[fixed], "--payload", good, "--yes")
    tailrace("dlq", "discard", shop.file, names[given_up], "--why", "test", "--yes")
    before = letters(shop)
    # The events fail again: no dead letter is written twice or opened again.
    for origin in (log, table):
        result = replay(shop, tailrace, *origin)
        assert letters(shop) == before
        assert (result["published"], result["dead_letters"], result["known_letters"]) == (1, 4, 4)
    opened = tailrace("dlq", "list", shop.file)["letters"]
    assert {each["event_id"] for each in opened} == {left, blocked}
    # The cause is fixed. A replay redrives an event that was never published, without the header of a replay.
    let_pass(shop, amount={})
    planned = tailrace("replay", "plan", shop.file, *table, "--key", "c")
    for point in KILLS:
        warm.killed("replay", "apply", planned["file"], at=point)
    tailrace("replay", "apply", planned["file"])
    assert replays(shop, left) == [""]
    states = {each["event_id"]: each["state"] for each in tailrace("dlq", "list", shop.file, "--all")["letters"]}
    assert states == {fixed: "redriven", given_up: "discarded", left: "replayed", blocked: "open"}
    tailrace("dlq", "redrive", shop.file, "--all-open", "--yes")
    assert replays(shop, blocked) == [""]
    assert len(replays(shop, fixed)) == 1
    assert replays(shop, left) == [""]
    assert tailrace("verify", shop.file)["clean"]
    # A published event that fails in a replay gets a dead letter of the replay, and its redrive says so.
    let_pass(shop, amount={"type": "string"})
    result = replay(shop, tailrace, *log, "--key", "e")
    assert (result["dead_letters"], result["known_letters"]) == (1, 0)
    let_pass(shop)
    assert tailrace("dlq", "redrive", shop.file, "--all-open", "--yes")["summary"] == {"redriven": 1}
    assert replays(shop, fine)[-1] == result["id"]
    assert tailrace("verify", shop.file)["clean"]
    # Two records without the header of a replay are a duplicate, also if a redrive wrote one.
    record = next(each for each in read_all(shop.kafka.bootstrap, [shop.topic]) if header(each, "id") == blocked)
    assert header(record, "tailrace.redriven")
    other = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    other.produce(shop.topic, record.value(), record.key(), headers=record.headers())
    assert other.flush(20) == 0
    result = tailrace("verify", shop.file, code=1)
    assert (result["clean"], result["duplicated"]) == (False, 1)
    assert Counter(letters(shop))[fine] == 1
    # A copy of a dead letter, which delivery at least once may write, is resolved together with the first.
    twice = shop.insert(INVALID, key="f")
    wait_until(lambda: twice in letters(shop), 60, what="the letter")
    letter = read_all(shop.kafka.bootstrap, [shop.letters])[-1]
    other.produce(shop.letters, letter.value(), letter.key(), headers=letter.headers())
    assert other.flush(20) == 0
    assert [each["event_id"] for each in tailrace("dlq", "list", shop.file)["letters"]] == [twice]
    let_pass(shop, amount={})
    assert tailrace("dlq", "redrive", shop.file, "--all-open", "--yes")["summary"] == {"redriven": 1}
    assert replays(shop, twice) == [""]
    assert tailrace("dlq", "list", shop.file)["letters"] == []


@pytest.mark.slow
def test_a_rewound_pipeline_writes_no_dead_letter_twice(shop: Shop, tailrace: Tailrace) -> None:
    shop.configure(source={"replay_window": "1 h"})
    connector = shop.start()
    given_up, left = (shop.insert(INVALID, key=key) for key in "ab")
    fine = shop.insert(VALID, key="c")
    wait_until(lambda: len(letters(shop)) == 2 and len(shop.published()) == 1, 60, what="two letters")
    names = {each["event_id"]: each["id"] for each in tailrace("dlq", "list", shop.file)["letters"]}
    tailrace("dlq", "discard", shop.file, names[given_up], "--why", "test", "--yes")
    before = letters(shop)
    for times, amount in enumerate(({"type": "number"}, {}), 1):
        assert connector.stop() == 0
        let_pass(shop, amount=amount)
        planned = tailrace("replay", "plan", shop.file, "--from", "oldest", "--in-place")
        tailrace("replay", "apply", planned["file"])
        connector = shop.start()
        wait_until(lambda count=times: len(replays(shop, fine)) > count, 60, what="what comes again")  # type: ignore[misc]
    assert letters(shop) == before
    assert replays(shop, left) == [""]
    assert tailrace("dlq", "list", shop.file)["letters"] == []
    assert tailrace("verify", shop.file)["clean"]


@pytest.mark.slow
def test_on_mongodb(users: Users, tailrace: Tailrace) -> None:
    users.start()
    users.insert("u1", 1)
    bad = users.insert("u2", -5)
    wait_until(lambda: len(letters(users)) == len(users.published()) == 1, 60, what="a record and a letter")
    (record,) = read_all(users.kafka.bootstrap, [users.topic])
    for origin in (("--from", header(record, "position").partition(":")[0]), ("--from", "1h", "--from-table")):
        result = replay(users, tailrace, *origin)
        assert letters(users) == [bad]
        assert (result["published"], result["dead_letters"], result["known_letters"]) == (1, 1, 1)
    assert tailrace("verify", users.file)["clean"]
