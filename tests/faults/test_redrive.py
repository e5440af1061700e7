"""Faults of dead letters: a redrive that is killed, fenced or rejected, and an unusable dead-letter topic.

Rows 56 and 58 of the fault matrix for dead letters, and rows 1 to 3 for `tailrace dlq redrive`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from faults.test_kafka_faults import read_only
from helpers import warm_processes as warm
from helpers.shop import SCHEMA, Shop
from tailrace import failpoints
from tailrace.config.load import load_pipeline
from tailrace.dlq import resolutions
from tailrace.dlq.reader import DeadLetterReader
from tailrace.dlq.redrive import RedriveItem, RedrivePublisher, pass_again
from tailrace.dlq.resolutions import Resolution
from tailrace.errors import Fenced
from tailrace.state.offsets import admin_client
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.worker.wiring import wire

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
INVALID = '{"order": "a", "revision": 1, "amount": "much", "currency": "EUR"}'

# Several transactions for a few dead letters.
SMALL_BATCHES = """
from tailrace.dlq import redrive
redrive.BATCH_LETTERS = 4
from tailrace.cli import main
main()
"""


def dlq(shop: Shop, *arguments: str, kill: str = "") -> tuple[int, list[dict[str, Any]]]:
    """Runs a command in a separate process, which can be killed; returns its exit code and output."""
    script = shop.folder / "small_batches.py"
    script.write_text(SMALL_BATCHES)
    command, *more = arguments
    environ = {**os.environ, "TAILRACE_KILL": kill}
    done = warm.run("dlq", command, str(shop.file), *more, "--json", program=[str(script)], env=environ)
    return done.returncode, [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]


def open_letters(shop: Shop) -> list[dict[str, Any]]:
    code, reported = dlq(shop, "list")
    assert code == 0, reported
    found: list[dict[str, Any]] = reported[0]["letters"]
    return found


def allow_any_amount(shop: Shop) -> None:
    properties: dict[str, Any] = {**SCHEMA["properties"], "amount": {}}  # type: ignore[dict-item]
    (shop.folder / "schemas" / "OrderPlaced" / "1.json").write_text(json.dumps({**SCHEMA, "properties": properties}))


def dead_letter_events(shop: Shop, number: int) -> list[str]:
    """Creates dead letters, then changes the schema so that they pass; returns the ids of their events."""
    events = [shop.insert(INVALID, key=f"k-{each}") for each in range(number)]
    wait_until(lambda: {seen.id for seen in shop.dead_lettered()} >= set(events), 60, what="the dead letters")
    allow_any_amount(shop)
    return events


def times_published(shop: Shop) -> Counter[str]:
    return Counter(seen.id for seen in shop.published())


def test_every_failpoint_of_a_redrive_is_exercised() -> None:
    assert {point for point, _ in KILLED} == set(failpoints.REDRIVING)


KILLED = [
    (failpoints.REDRIVE_BEFORE_PRODUCE, 4),
    (failpoints.REDRIVE_AFTER_PRODUCE, 4),
    (failpoints.REDRIVE_AFTER_COMMIT, 8),
]


@pytest.mark.parametrize(
    ("point", "resolved"),
    [pytest.param(*each, marks=() if each == KILLED[1] else pytest.mark.slow) for each in KILLED],
)
def test_a_redrive_killed_in_its_second_batch_publishes_each_event_once(shop: Shop, point: str, resolved: int) -> None:
    """The pipeline runs at the same time. Of the interrupted batch, all dead letters are resolved or none is."""
    connector = shop.start()
    events = dead_letter_events(shop, 10)
    code, _ = dlq(shop, "redrive", "--all-open", "--yes", kill=f"{point}:2")
    assert code == -9
    newer = shop.insert(VALID, kind="OrderChanged")
    code, reported = dlq(shop, "redrive", "--all-open", "--yes")
    assert code == 0, reported
    assert reported[-1] == {"summary": {"redriven": 10 - resolved}}
    wait_until(lambda: newer in times_published(shop), 60, what="the event of the pipeline")
    assert times_published(shop) == Counter([*events, newer])
    assert open_letters(shop) == []
    code, reported = dlq(shop, "list", "--all")
    assert {each["event_id"]: each["state"] for each in reported[0]["letters"]} == dict.fromkeys(events, "redriven")
    assert dlq(shop, "redrive", "--all-open", "--yes") == (0, [{"summary": {}}])
    assert connector.running
    assert "Fenced" not in connector.log


def test_two_redrives_fence_each_other_and_publish_once(shop: Shop) -> None:
    shop.start()
    events = dead_letter_events(shop, 3)
    wiring = wire(load_pipeline(shop.file))
    processor, reader = wiring.processor(), DeadLetterReader(wiring.kafka)
    resolutions.ensure(wiring.kafka, admin_client(wiring.kafka))

    def opened() -> RedrivePublisher:
        publisher = RedrivePublisher(wiring.kafka, lambda _: None)
        publisher.open()
        resolved = reader.resolved_ids(final=True, must_exist=True)
        for letter in reader.dead_letters(reader.ranges()):
            assert letter not in resolved
            publisher.add(
                RedriveItem(letter, Resolution("redriven", 1, position=letter.position), pass_again(processor, letter))
            )
        return publisher

    older, newer = opened(), opened()
    with pytest.raises(Fenced):
        older.flush()
    assert times_published(shop) == Counter()
    sent, rejected = newer.flush()
    assert (len(sent), rejected) == (3, [])
    assert times_published(shop) == Counter(events)


def test_an_interrupted_redrive_leaves_no_open_transaction(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open transaction would hold back consumers until its timeout."""
    shop.start()
    (event,) = dead_letter_events(shop, 1)
    wiring = wire(load_pipeline(shop.file))
    reader, publisher = DeadLetterReader(wiring.kafka), RedrivePublisher(wiring.kafka, lambda _: None)
    (letter,) = reader.dead_letters(reader.ranges())
    item = RedriveItem(
        letter, Resolution("redriven", 1, position=letter.position), pass_again(wiring.processor(), letter)
    )
    resolutions.ensure(wiring.kafka, admin_client(wiring.kafka))
    publisher.open()

    def interrupt(point: str) -> None:
        if point == failpoints.REDRIVE_AFTER_PRODUCE:
            publisher._producer.flush(20)
            assert shop.undecided()
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "reached", interrupt)
    publisher.add(item)
    with pytest.raises(KeyboardInterrupt):
        publisher.flush()
    wait_until(lambda: not shop.undecided(), 40, what="the end of the transaction, long before its timeout")
    assert times_published(shop) == Counter()
    monkeypatch.undo()
    publisher.add(item)
    publisher.flush()
    assert times_published(shop) == Counter([event])
    assert letter in reader.resolved_ids(final=True)


def test_dead_letters_stay_open_if_their_topic_rejects_them(shop: Shop) -> None:
    shop.start()
    events = dead_letter_events(shop, 3)
    with read_only(shop, shop.topic):
        code, reported = dlq(shop, "redrive", "--all-open", "--yes")
        assert (code, reported[-1]["error"]) == (3, "TopicRefused")
        assert len(open_letters(shop)) == 3
    assert dlq(shop, "redrive", "--all-open", "--yes")[0] == 0
    assert times_published(shop) == Counter(events)


def test_marks_that_cannot_be_written_publish_nothing(shop: Shop, make_topic: Callable[..., None]) -> None:
    shop.start()
    events = dead_letter_events(shop, 2)
    make_topic(f"{shop.letters}.marks", cleanup_policy="compact")
    with read_only(shop, f"{shop.letters}.marks"):
        code, reported = dlq(shop, "redrive", "--all-open", "--yes")
        assert (code, reported[-1]["error"]) == (3, "TopicRefused")
        assert times_published(shop) == Counter()
    assert dlq(shop, "redrive", "--all-open", "--yes")[0] == 0
    assert times_published(shop) == Counter(events)


def test_one_letter_that_its_topic_does_not_take_does_not_hold_the_others_up(shop: Shop) -> None:
    shop.start()
    large = shop.insert(json.dumps({**json.loads(INVALID), "note": "x" * 50_000}))
    events = dead_letter_events(shop, 3)
    admin = shop.kafka.admin()
    admin.delete_topics([shop.topic])[shop.topic].result(20)
    spec = {"topic": shop.topic, "match": {"aggregate": "order"}, "partitions": 1, "replication": 1}
    spec["config"] = {"max.message.bytes": 20_000}
    (shop.folder / "topics" / "orders.yaml").write_text(json.dumps(spec))
    wait_until(lambda: shop.topic not in admin.list_topics(timeout=10).topics, 60, what="the end of the topic")
    code, reported = dlq(shop, "redrive", "--all-open", "--yes")
    assert (code, reported[-1]) == (1, {"summary": {"redriven": 3, "failed": 1}})
    assert times_published(shop) == Counter(events)
    assert [each["event_id"] for each in open_letters(shop)] == [large]


def test_the_dead_letter_topic_is_deleted_while_running(shop: Shop) -> None:
    shop.configure(kafka={"settings": {"transaction.timeout.ms": 3000, "message.timeout.ms": 2000}})
    connector = shop.start()
    first = shop.insert(INVALID)
    wait_until(lambda: [seen.id for seen in shop.dead_lettered()] == [first], 60, what="the first letter")
    admin = shop.kafka.admin()
    admin.delete_topics([shop.letters])[shop.letters].result(20)
    before = shop.positions()[-1]
    bad, good = shop.insert(INVALID), shop.insert(VALID)
    connector.failed("TopicMissing")
    assert shop.letters in connector.log
    assert shop.positions()[-1].progress == before.progress
    assert times_published(shop) == Counter()
    shop.start()
    wait_until(lambda: times_published(shop) == Counter([good]), 60, what="the good event")
    assert [seen.id for seen in shop.dead_lettered()] == [bad]


def test_a_letter_that_its_topic_does_not_take_stops_the_pipeline(shop: Shop, make_topic: Callable[..., None]) -> None:
    """There is nowhere left to put the event: it must neither be dropped nor be tried for ever."""
    make_topic(shop.letters, max_message_bytes="20000")
    shop.start().stop()
    before = shop.positions()[-1]
    bad = shop.insert(json.dumps({**json.loads(INVALID), "note": "x" * 50_000}))
    good = shop.insert(VALID)
    connector = shop.start(wait=False)
    connector.failed("TopicRefused")
    assert shop.letters in connector.log
    assert shop.positions()[-1].progress == before.progress
    assert (times_published(shop), shop.dead_lettered()) == (Counter(), [])
    admin = shop.kafka.admin()
    admin.delete_topics([shop.letters])[shop.letters].result(20)
    wait_until(lambda: shop.letters not in admin.list_topics(timeout=10).topics, 60, what="the end of the topic")
    shop.start()
    wait_until(lambda: times_published(shop) == Counter([good]), 60, what="the good event")
    (letter,) = read_all(shop.kafka.bootstrap, [shop.letters])
    assert header(letter, "id") == bad
