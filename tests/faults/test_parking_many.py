"""Many parked keys redriven at once: other keys are not held up, and each event is published once and in order."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from helpers.parking import BAD, arrived, ask, good, ids, letters, options, parked, parking_state
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.cli import main
from tailrace.dlq.parked_keys import waiting_topic
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import read_all

KEYS, EACH = 60, 60


def park_many(shop: Shop) -> None:
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        f"SELECT gen_random_uuid(), 'order', 'k' || key, 'OrderPlaced', '{BAD}' FROM generate_series(1, {KEYS}) AS key"
    )
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        "SELECT gen_random_uuid(), 'order', 'k' || key, 'OrderPlaced', "
        "jsonb_build_object('order', 'o', 'revision', number, 'amount', 1.5, 'currency', 'EUR') "
        f"FROM generate_series(1, {EACH}) AS number, generate_series(1, {KEYS}) AS key"
    )
    parked(shop, KEYS)
    topic = waiting_topic(options(shop))
    wait_until(lambda: len(read_all(shop.kafka.bootstrap, [topic])) == KEYS * EACH, 60, what="all to wait")


def revisions(shop: Shop) -> dict[str, list[int]]:
    found = defaultdict[str, list[int]](list)
    for message in read_all(shop.kafka.bootstrap, [shop.topic]):
        if (key := (message.key() or b"").decode()).startswith("k"):
            found[key].append(json.loads(message.value() or b"")["revision"])
    return found


EXPECTED = {f"k{key}": [*range(1, EACH + 1)] for key in range(1, KEYS + 1)}


@pytest.mark.slow
def test_other_keys_are_published_during_a_release_and_a_kill_loses_nothing(parking: Shop) -> None:
    parking.configure(limits={"batch_records": 6})
    connector = parking.start()
    park_many(parking)
    ask(parking, letters(parking), "discard")
    wait_until(lambda: ids(parking, "k1"), 60, what="the release to begin")
    other = parking.insert(good(1), key="other")
    newer = parking.insert(good(EACH + 1), key="k1")
    arrived(parking, other)
    assert parking_state(parking).keys, "all were released before an event of another key was published"
    connector.kill()
    killed = parking.start(kill=f"{failpoints.RELEASING}:3", wait=False)
    assert killed.ended() == -9
    parking.start()
    arrived(parking, newer)
    parked(parking, 0)
    assert revisions(parking) == {**EXPECTED, "k1": [*EXPECTED["k1"], EACH + 1]}


def test_one_command_releases_many_keys(parking: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    parking.start()
    park_many(parking)
    with pytest.raises(SystemExit) as ended:
        main(["dlq", "discard", str(parking.file), "--key", "k*", "--why", "test data", "--yes", "--json"])
    assert ended.value.code == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["outcome"] for each in lines[:KEYS]] == ["released"] * KEYS
    assert revisions(parking) == EXPECTED
    assert parking_state(parking).keys == {}
