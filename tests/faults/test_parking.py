"""The policy `park`: a key whose event was set aside waits, in order, whatever happens; every other key flows on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from fix_shop import Shop
from tailrace import killpoint
from tailrace.cli import main
from tailrace.config.load import load_pipeline
from tailrace.kafka import park_requests
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.letters import LetterId
from tailrace.kafka.parked import Board, Request, waiting_topic
from tailrace.proof.oracle import Outcome
from tailrace.proof.reader import header, read_all
from tailrace.proof.workload import Mix
from tailrace.stack import StackError, wait_until
from tailrace.worker.assembly import kafka_options

BAD = json.dumps({"order": "x"})


def good(revision: int) -> str:
    return json.dumps({"order": "o", "revision": revision, "amount": 1.5, "currency": "EUR"})


@pytest.fixture
def parking(shop: Shop) -> Shop:
    shop.configure(on_invalid="park")
    return shop


def options(shop: Shop) -> KafkaOptions:
    return kafka_options(load_pipeline(shop.file))


def board(shop: Shop) -> Board:
    return park_requests.board(options(shop))


def letters(shop: Shop) -> list[Message]:
    return read_all(shop.kafka.bootstrap, [shop.letters])


def name_of(message: Message) -> LetterId:
    return LetterId(int(message.partition() or 0), int(message.offset() or 0))


def in_front(shop: Shop) -> list[Message]:
    """The letters that others wait behind, those dealt with left out."""
    places = {state.place for state in board(shop).keys.values()}
    return [message for message in letters(shop) if header(message, "tailrace.position") in places]


def ask(shop: Shop, message: Message, action: str, payload: str | None = None) -> None:
    request = Request(
        name_of(message),
        "discard" if action == "discard" else "redrive",
        "somebody",
        "a test",
        None if payload is None else payload.encode(),
    )
    park_requests.ask(options(shop), request)


def ids(shop: Shop, key: str) -> list[str]:
    """What readers have seen of a key, in order."""
    return [seen.id for seen in shop.published() if seen.key == key]


def arrived(shop: Shop, *events: str) -> None:
    try:
        wait_until(lambda: set(events) <= {seen.id for seen in shop.published()}, 60)
    except StackError:
        pytest.fail(f"not all events arrived; {board(shop).answers}, {shop.connectors[-1].log}")


def parked(shop: Shop, count: int = 1) -> None:
    wait_until(lambda: len(board(shop).keys) == count, 60, what=f"{count} parked keys, not {board(shop).keys}")


def test_later_events_of_a_key_wait_and_all_other_keys_flow_on(parking: Shop) -> None:
    parking.start()
    before = parking.insert(good(1), key="a")
    bad = parking.insert(BAD, key="a")
    behind = [parking.insert(good(number), key="a") for number in range(1, 4)]
    other = parking.insert(good(1), key="b")
    arrived(parking, before, other)
    parked(parking)
    assert ids(parking, "a") == [before]
    assert [header(message, "id") for message in letters(parking)] == [bad]
    ask(parking, letters(parking)[0], "redrive", good(9))
    arrived(parking, *behind)
    assert ids(parking, "a") == [before, bad, *behind]
    parked(parking, 0)
    record = next(m for m in read_all(parking.kafka.bootstrap, [parking.topic]) if header(m, "id") == bad)
    assert json.loads(record.value() or b"")["revision"] == 9
    assert (header(record, "tailrace.redriven"), header(record, "tailrace.edited")) == ("0-0", "true")
    newer = parking.insert(good(5), key="a")
    arrived(parking, newer)
    assert ids(parking, "a") == [before, bad, *behind, newer]


def test_a_discarded_letter_lets_those_behind_it_go(parking: Shop) -> None:
    parking.start()
    parking.insert(BAD, key="a")
    behind = [parking.insert(good(number), key="a") for number in range(1, 4)]
    parked(parking)
    ask(parking, letters(parking)[0], "discard")
    arrived(parking, *behind)
    assert ids(parking, "a") == behind
    assert len(letters(parking)) == 1


def test_a_letter_that_is_still_wrong_stays_in_front_and_the_answer_says_why(parking: Shop) -> None:
    connector = parking.start()
    parking.insert(BAD, key="a")
    behind = parking.insert(good(1), key="a")
    parked(parking)
    front = letters(parking)[0]
    ask(parking, front, "redrive")
    answers = wait_until(lambda: board(parking).answers, 60, what="the answer")
    assert "revision" in answers[name_of(front)]
    assert board(parking).requests == {}
    assert behind not in ids(parking, "a")
    assert connector.running


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, list[Any]]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    return ended.value.code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_commands_leave_a_letter_in_front_to_the_pipeline(
    parking: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parking.start()
    bad = parking.insert(BAD, key="a")
    behind = parking.insert(good(1), key="a")
    parked(parking)
    file, mended = str(parking.file), tmp_path / "mended.json"
    mended.write_text(good(7))
    assert run(capsys, "status", file)[1][0]["parked"]["keys"] == 1
    code, told = run(capsys, "dlq", "redrive", file, "0-0", "--yes")
    assert (code, told[0]["outcome"]) == (1, "failed")
    assert ids(parking, "a") == []
    code, told = run(capsys, "dlq", "redrive", file, "0-0", "--payload", str(mended), "--why", "a typo", "--yes")
    assert (code, told[0]["outcome"]) == (0, "released")
    arrived(parking, bad, behind)
    assert ids(parking, "a") == [bad, behind]
    assert in_front(parking) == []
    assert run(capsys, "status", file)[1][0]["parked"] is None
    parking.insert(BAD, key="b")
    last = parking.insert(good(2), key="b")
    parked(parking)
    (front,) = in_front(parking)
    code, told = run(capsys, "dlq", "discard", file, str(name_of(front)), "--key", "a", "--why", "wrong one", "--yes")
    assert code != 0
    assert board(parking).requests == {}
    code, told = run(capsys, "dlq", "discard", file, str(name_of(front)), "--key", "b", "--why", "test", "--yes")
    assert (code, told[0]["outcome"]) == (0, "released")
    arrived(parking, last)


def test_the_next_bad_event_behind_becomes_the_one_in_front(parking: Shop) -> None:
    parking.start()
    bad = [parking.insert(BAD, key="a")]
    first = parking.insert(good(1), key="a")
    bad.append(parking.insert(BAD, key="a"))
    second = parking.insert(good(2), key="a")
    parked(parking)
    ask(parking, letters(parking)[0], "discard")
    arrived(parking, first)
    wait_until(lambda: len(letters(parking)) == 2, 60, what="the second letter")
    assert ids(parking, "a") == [first]
    assert [header(message, "id") for message in in_front(parking)] == [bad[1]]
    ask(parking, in_front(parking)[0], "discard")
    arrived(parking, second)
    assert ids(parking, "a") == [first, second]
    parked(parking, 0)


def test_one_that_its_topic_refuses_on_its_way_out_becomes_the_one_in_front(parking: Shop) -> None:
    """It could wait, on a topic that takes more; where it is to go it does not fit."""
    connector = parking.start()
    parking.insert(BAD, key="a")
    parked(parking)
    first = parking.insert(good(1), key="a")
    large = parking.insert(good(2), key="a")
    last = parking.insert(good(3), key="a")
    size = (
        "INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, aggregateid, type, payload, repeat('x', 2000000) "
    )
    parking.execute(size + "FROM outbox WHERE id = %s", large)
    after = parking.insert(good(4), key="a")
    ask(parking, letters(parking)[0], "discard")
    arrived(parking, first, large, last)
    wait_until(lambda: len(letters(parking)) == 2, 60, what="the letter of the one that is refused")
    assert b"larger than the topic takes" in (dict(letters(parking)[1].headers() or [])["tailrace.explanation"] or b"")
    assert ids(parking, "a") == [first, large, last]
    ask(parking, in_front(parking)[0], "discard")
    arrived(parking, after)
    assert ids(parking, "a") == [first, large, last, after]
    assert connector.running


def test_what_is_asked_while_nobody_runs_is_done_at_the_next_start(parking: Shop) -> None:
    parking.start()
    parking.insert(BAD, key="a")
    behind = parking.insert(good(1), key="a")
    parked(parking)
    parking.connectors[-1].kill()
    ask(parking, letters(parking)[0], "discard")
    newer = parking.insert(good(2), key="a")
    parking.start()
    arrived(parking, behind, newer)
    assert ids(parking, "a") == [behind, newer]


@pytest.mark.parametrize("point", [killpoint.RELEASING, killpoint.AFTER_PRODUCE, killpoint.AFTER_COMMIT])
def test_killed_while_those_behind_are_released(parking: Shop, point: str) -> None:
    """Many small transactions: whichever of them it dies in or after, each event comes once, in order."""
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


def test_what_was_parked_is_not_overtaken_when_the_policy_changes(parking: Shop) -> None:
    parking.start()
    parking.insert(BAD, key="a")
    parked(parking)
    parking.connectors[-1].stop()
    parking.configure(on_invalid="dead_letter")
    parking.start()
    behind = parking.insert(good(1), key="a")
    other = parking.insert(good(1), key="b")
    arrived(parking, other)
    assert behind not in ids(parking, "a")
    ask(parking, letters(parking)[0], "discard")
    arrived(parking, behind)


def peak_mb(shop: Shop) -> float:
    status = Path(f"/proc/{shop.connectors[-1].process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def test_tens_of_thousands_wait_and_go_in_flat_memory(parking: Shop) -> None:
    """20,000 events of 2 kB behind one letter: neither their waiting nor their going takes all 40 MB at once."""
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
    wait_until(lambda: not board(parking).keys, 120, what="all to go")
    revisions = [
        json.loads(message.value() or b"")["revision"]
        for message in read_all(parking.kafka.bootstrap, [parking.topic])
        if message.key() == b"a"
    ]
    assert revisions == list(range(1, 20_001))
    assert peak_mb(parking) < before + 40


def test_too_many_parked_keys_stop_the_pipeline(parking: Shop) -> None:
    parking.configure(dead_letters={"park_keys": 2})
    connector = parking.start()
    for key in "ab":
        parking.insert(BAD, key=key)
    parked(parking, 2)
    position = parking.positions()[-1]
    parking.insert(BAD, key="c")
    connector.failed("ParkingFull")
    assert parking.positions()[-1].lsn == position.lsn
    assert "bound" in connector.log


def waiting(shop: Shop) -> dict[str, list[str]]:
    """What waits behind each parked key, in order."""
    states = {key.decode(): state for (_, key), state in board(shop).keys.items()}
    found: dict[str, list[str]] = {key: [] for key in states}
    for message in read_all(shop.kafka.bootstrap, [waiting_topic(options(shop))]):
        key = header(message, "tailrace.key")
        if key in states and int(message.offset() or 0) >= states[key].released:
            found[key].append(header(message, "id"))
    return found


def adds_up(shop: Shop) -> None:
    """Per key: what is published, waits or was set aside is what was committed, and nothing overtook what waits."""
    seen, waits = shop.published(), waiting(shop)
    aside = {header(message, "id") for message in letters(shop)}
    for key in {entry.key for writer in shop.writers for entry in writer.ledger}:
        entries = [entry for writer in shop.writers for entry in writer.ledger if entry.key == key]
        committed = [entry.id for entry in entries if entry.outcome is Outcome.COMMITTED]
        published = [each.id for each in seen if each.key == key]
        behind = waits.get(key, [])
        assert [each for each in committed if each not in aside] == published + behind, key


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again_nothing_is_lost_repeated_or_out_of_order(parking: Shop, seed: int) -> None:
    """Bad events, kills and discards at random; at the end all fronts are discarded, and everything adds up."""
    chance = random.Random(seed)
    parking.configure(limits={"batch_records": 20})
    parking.start()
    writer = parking.writer(seed=seed, mix=Mix(invalid=0.05, events_per_transaction=5))
    writer.start(rate=40)
    for _ in range(4):
        seen = len(parking.positions())
        wait_until(lambda seen=seen: len(parking.positions()) > seen + chance.randrange(3, 15), 60, what="progress")
        if chance.random() < 0.7:
            parking.connectors[-1].kill()
        for message in in_front(parking):
            if chance.random() < 0.5:
                ask(parking, message, "discard")
        if not parking.connectors[-1].running:
            parking.start()
    writer.stop()
    end = int(parking.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0])
    wait_until(lambda: parking.positions()[-1].lsn >= end, 60, what="everything to be published or to wait")
    wait_until(lambda: not board(parking).requests, 60, what="all requests to be carried out")
    adds_up(parking)

    def none_parked() -> bool:
        asked = board(parking).requests
        for message in in_front(parking):
            if name_of(message) not in asked:
                ask(parking, message, "discard")
        return not board(parking).keys and not parking.verdict().missing

    wait_until(none_parked, 120, what="all keys to be released")
    verdict = parking.verdict()
    assert verdict.ok, verdict
    assert verdict.dead_lettered > 0
