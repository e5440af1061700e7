"""Parked keys under kill -9 and under load: no event is lost, repeated or out of order, and memory stays flat."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from helpers.parking import (
    BAD,
    arrived,
    ask,
    first_letters,
    good,
    ids,
    letters,
    name_of,
    options,
    parked,
    parking_state,
)
from helpers.shop import Shop
from helpers.tiers import mostly_slow
from tailrace import failpoints
from tailrace.dlq.parked_keys import waiting_topic
from tailrace.testkit.oracle import WriteOutcome
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.testkit.workload.orders import Mix

RELEASES = (failpoints.RELEASING, failpoints.AFTER_PRODUCE, failpoints.AFTER_COMMIT)


@pytest.mark.parametrize("point", mostly_slow(RELEASES, [failpoints.AFTER_COMMIT]))
def test_a_kill_during_a_release_loses_and_repeats_nothing(parking: Shop, point: str) -> None:
    """Many small transactions: in or after whichever it is killed, each event is published once and in order."""
    parking.configure(limits={"batch_records": 10})
    parking.start()
    parking.insert(BAD, key="a")
    parked(parking)
    parking.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        f"SELECT gen_random_uuid(), 'order', 'a', 'OrderPlaced', '{good(1)}' FROM generate_series(1, 100)"
    )
    rows = parking.execute(
        "SELECT id, pg_current_wal_insert_lsn() - '0/0' FROM outbox WHERE payload::text LIKE '%EUR%' ORDER BY ctid"
    )
    expected, end = [str(row[0]) for row in rows], int(rows[0][1])
    wait_until(lambda: parking.positions()[-1].lsn >= end, 60, what="all of them to wait")
    parking.connectors[-1].kill()
    ask(parking, letters(parking)[0], "discard")
    killed = parking.start(kill=f"{point}:4", wait=False)
    assert killed.ended() == -9
    newer = parking.insert(good(2), key="a")
    parking.start()
    arrived(parking, newer)
    assert ids(parking, "a") == [*expected, newer]


def peak_mb(shop: Shop) -> float:
    status = Path(f"/proc/{shop.connectors[-1].process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


@pytest.mark.slow
def test_memory_stays_flat_while_tens_of_thousands_wait_and_are_released(parking: Shop) -> None:
    """20,000 events of 2 kB behind one dead letter are never all in memory (40 MB)."""
    rows = (
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        "SELECT gen_random_uuid(), 'order', '{key}', 'OrderPlaced', jsonb_build_object("
        "'order', repeat('x', 2000), 'revision', number, 'amount', 1, 'currency', 'EUR') "
        "FROM generate_series(1, {count}) AS number"
    )
    parking.configure(limits={"batch_records": 500})
    parking.start()
    parking.execute(rows.format(key="b", count=2000))
    wait_until(lambda: len(ids(parking, "b")) == 2000, 60, what="a few thousand events of another key")
    parking.insert(BAD, key="a")
    parked(parking)
    before = peak_mb(parking)
    parking.execute(rows.format(key="a", count=20_000))
    other = parking.insert(good(1), key="b")
    arrived(parking, other)
    assert ids(parking, "a") == []
    ask(parking, letters(parking)[0], "discard")
    wait_until(lambda: not parking_state(parking).keys, 120, what="the release of all events")
    revisions = [
        json.loads(message.value() or b"")["revision"]
        for message in read_all(parking.kafka.bootstrap, [parking.topic])
        if message.key() == b"a"
    ]
    assert revisions == list(range(1, 20_001))
    assert peak_mb(parking) < before + 40


def waiting(shop: Shop) -> dict[str, list[str]]:
    """Returns the ids of the events that wait behind each parked key, in order."""
    states = {key.decode(): state for (_, key), state in parking_state(shop).keys.items()}
    found: dict[str, list[str]] = {key: [] for key in states}
    for message in read_all(shop.kafka.bootstrap, [waiting_topic(options(shop))]):
        key = header(message, "tailrace.key")
        if key in states and int(message.offset() or 0) >= states[key].released:
            found[key].append(header(message, "id"))
    return found


def assert_nothing_lost(shop: Shop) -> None:
    """The committed events of each key are published, waiting or dead-lettered; none overtook a waiting one."""
    seen, waits = shop.published(), waiting(shop)
    dead_lettered = {header(message, "id") for message in letters(shop)}
    for key in {entry.key for writer in shop.writers for entry in writer.written}:
        entries = [entry for writer in shop.writers for entry in writer.written if entry.key == key]
        committed = [entry.id for entry in entries if entry.outcome is WriteOutcome.COMMITTED]
        published = [each.id for each in seen if each.key == key]
        behind = waits.get(key, [])
        assert [each for each in committed if each not in dead_lettered] == published + behind, key


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_many_kills_lose_repeat_and_reorder_nothing(parking: Shop) -> None:
    """Invalid events, kills and discards at random; at the end all first dead letters are discarded."""
    chance = random.Random(0)
    parking.configure(limits={"batch_records": 20})
    parking.start()
    writer = parking.writer(seed=0, mix=Mix(invalid=0.05, events_per_transaction=5))
    writer.start(rate=20)
    for killed in chance.sample([True, True, True, False], 4):
        goal = len(parking.positions()) + chance.randrange(3, 15)
        wait_until(lambda goal=goal: len(parking.positions()) > goal, 120, what="progress")
        if killed:
            parking.connectors[-1].kill()
        # Not `final`: the service writes faster than the open transaction of a killed connector times out.
        for message in first_letters(parking, final=False):
            if chance.random() < 0.5:
                ask(parking, message, "discard")
        if not parking.connectors[-1].running:
            parking.start()
    writer.stop()
    end = int(parking.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0])
    wait_until(lambda: parking.positions()[-1].lsn >= end, 120, what="everything to be published or to wait")
    wait_until(lambda: not parking_state(parking).requests, 120, what="all requests to be carried out")
    assert_nothing_lost(parking)

    def none_parked() -> bool:
        found = parking_state(parking)
        if not found.keys:
            return not parking.verdict().missing
        positions = {state.place for state in found.keys.values()}
        for message in letters(parking):
            if header(message, "tailrace.position") in positions and name_of(message) not in found.requests:
                ask(parking, message, "discard")
        return False

    wait_until(none_parked, 120, what="all keys to be released")
    verdict = parking.verdict()
    assert verdict.ok, verdict
    assert verdict.dead_lettered > 0
