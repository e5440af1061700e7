"""The policy `park`: later events of a key wait behind its dead letter, in order; other keys are not affected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.parking import BAD, arrived, ask, first_letters, good, ids, letters, name_of, parked, parking_state
from helpers.shop import Shop
from tailrace.cli import main
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all


def test_later_events_of_a_key_wait_and_other_keys_are_published(parking: Shop) -> None:
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


def test_discarding_a_dead_letter_releases_the_events_behind_it(parking: Shop) -> None:
    parking.start()
    parking.insert(BAD, key="a")
    behind = [parking.insert(good(number), key="a") for number in range(1, 4)]
    parked(parking)
    ask(parking, letters(parking)[0], "discard")
    arrived(parking, *behind)
    assert ids(parking, "a") == behind
    assert len(letters(parking)) == 1


def test_a_dead_letter_that_still_fails_stays_first_and_the_answer_says_why(parking: Shop) -> None:
    connector = parking.start()
    parking.insert(BAD, key="a")
    behind = parking.insert(good(1), key="a")
    parked(parking)
    first_letter = letters(parking)[0]
    ask(parking, first_letter, "redrive")
    answers = wait_until(lambda: parking_state(parking).answers, 60, what="the answer")
    assert "revision" in answers[name_of(first_letter)]
    assert parking_state(parking).requests == {}
    assert behind not in ids(parking, "a")
    assert connector.running


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, list[Any]]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    return ended.value.code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_commands_let_the_pipeline_resolve_the_first_dead_letter_of_a_key(
    parking: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parking.start()
    bad = parking.insert(BAD, key="a")
    behind = parking.insert(good(1), key="a")
    parked(parking)
    file, corrected = str(parking.file), tmp_path / "corrected.json"
    corrected.write_text(good(7))
    assert run(capsys, "status", file)[1][0]["parked"]["keys"] == 1
    assert [letter["parked"] for letter in run(capsys, "dlq", "list", file)[1][0]["letters"]] == [True]
    code, lines = run(capsys, "dlq", "redrive", file, "0-0", "--yes")
    assert (code, lines[0]["outcome"]) == (1, "failed")
    assert ids(parking, "a") == []
    code, lines = run(capsys, "dlq", "redrive", file, "0-0", "--payload", str(corrected), "--why", "a typo", "--yes")
    assert (code, lines[0]["outcome"]) == (0, "released")
    arrived(parking, bad, behind)
    assert ids(parking, "a") == [bad, behind]
    assert first_letters(parking) == []
    assert run(capsys, "status", file)[1][0]["parked"] is None
    parking.insert(BAD, key="b")
    last = parking.insert(good(2), key="b")
    parked(parking)
    (first_letter,) = first_letters(parking)
    code, lines = run(
        capsys, "dlq", "discard", file, str(name_of(first_letter)), "--key", "a", "--why", "wrong one", "--yes"
    )
    assert code != 0
    assert parking_state(parking).requests == {}
    code, lines = run(
        capsys, "dlq", "discard", file, str(name_of(first_letter)), "--key", "b", "--why", "test", "--yes"
    )
    assert (code, lines[0]["outcome"]) == (0, "released")
    arrived(parking, last)


def test_the_next_invalid_event_becomes_the_first(parking: Shop) -> None:
    parking.start()
    bad = [parking.insert(BAD, key="a")]
    first = parking.insert(good(1), key="a")
    bad.append(parking.insert(BAD, key="a"))
    second = parking.insert(good(2), key="a")
    parked(parking)
    ask(parking, letters(parking)[0], "discard")
    arrived(parking, first)
    wait_until(lambda: len(letters(parking)) == 2, 60, what="the second dead letter")
    assert ids(parking, "a") == [first]
    assert [header(message, "id") for message in first_letters(parking)] == [bad[1]]
    ask(parking, first_letters(parking)[0], "discard")
    arrived(parking, second)
    assert ids(parking, "a") == [first, second]
    parked(parking, 0)


def test_a_waiting_event_that_its_topic_rejects_becomes_the_first(parking: Shop) -> None:
    """The waiting topic accepts larger records than the topic of the event."""
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
    wait_until(lambda: len(letters(parking)) == 2, 60, what="the dead letter of the rejected event")
    assert b"larger than the topic takes" in (dict(letters(parking)[1].headers() or [])["tailrace.explanation"] or b"")
    assert ids(parking, "a") == [first, large, last]
    ask(parking, first_letters(parking)[0], "discard")
    arrived(parking, after)
    assert ids(parking, "a") == [first, large, last, after]
    assert connector.running


def test_an_event_that_its_topic_rejected_is_published_once_corrected(parking: Shop) -> None:
    """The remembered rejection concerns the original event, not the corrected one."""
    spec = parking.folder / "topics" / "orders.yaml"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "config": {"max.message.bytes": 2000}}))
    connector = parking.start()
    large = parking.insert(json.dumps({**json.loads(good(1)), "order": "x" * 3000}), key="a")
    behind = parking.insert(good(2), key="a")
    parked(parking)
    ask(parking, letters(parking)[0], "redrive", json.dumps({**json.loads(good(1)), "order": "y" * 3000}))
    answers = wait_until(lambda: parking_state(parking).answers, 60, what="the answer")
    assert "larger than the topic takes" in next(iter(answers.values()))
    ask(parking, letters(parking)[0], "redrive", good(1))
    arrived(parking, large, behind)
    assert ids(parking, "a") == [large, behind]
    assert connector.running


def test_a_request_without_a_running_pipeline_is_carried_out_at_the_next_start(parking: Shop) -> None:
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


def test_parked_keys_stay_parked_if_the_policy_changes(parking: Shop) -> None:
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
    assert "limit" in connector.log
