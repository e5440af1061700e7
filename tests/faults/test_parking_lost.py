"""Parked keys whose dead letter is gone are reported, and can be released exactly once, also after a kill."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from helpers.command import Tailrace
from helpers.parking import BAD, arrived, good, ids, parked
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.cli.dlq import parked_keys
from tailrace.kafka.topics import topic_config
from tailrace.testkit.stack import wait_until


def keep_for(shop: Shop, milliseconds: int) -> None:
    entry = ConfigEntry("retention.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, shop.letters, incremental_configs=[entry])
    admin = shop.kafka.admin()
    admin.incremental_alter_configs([resource])[resource].result(20)
    wait_until(lambda: topic_config(admin, shop.letters)["retention.ms"] == str(milliseconds), 20, what="the setting")


def lose_letters(shop: Shop) -> None:
    everything, admin = TopicPartition(shop.letters, 0, -1), shop.kafka.admin()
    admin.delete_records([everything])[everything].result(30)


@pytest.mark.slow
def test_a_key_whose_dead_letter_is_gone_can_be_released(
    parking: Shop, tailrace: Tailrace, make_topic: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pipeline rejects a topic that could delete a dead letter while its key is parked.
    make_topic(parking.letters, retention_ms="60000")
    checks = {each["name"]: each for each in tailrace("check", parking.file, code=1)["checks"]}
    assert "park_hours" in checks["dead-letter topic"]["found"]
    parking.start(wait=False).failed("ParkingUnfit")
    keep_for(parking, 604_800_000)
    connector = parking.start()
    bad = parking.insert(BAD, key="a")
    behind = [parking.insert(good(number), key="a") for number in range(1, 4)]
    other = parking.insert(good(1), key="b")
    arrived(parking, other)
    parked(parking)
    (shown,) = tailrace("dlq", "parked", parking.file)["keys"]
    assert (shown["letter"], shown["waiting"], shown["event_id"]) == ("0-0", 3, bad)
    assert tailrace("verify", parking.file)["clean"]
    # Delete the dead letter anyway.
    lose_letters(parking)
    (shown,) = tailrace("dlq", "parked", parking.file)["keys"]
    assert (shown["aggregate"], shown["key"], shown["letter"], shown["event_id"]) == ("order", "a", None, bad)
    report = tailrace("verify", parking.file, code=1)
    assert (report["clean"], report["parked_without_letter"]) == (False, 1)
    give_up = ("dlq", "discard", parking.file, "--why", "gone", "--yes")
    assert "not parked" in tailrace(*give_up, "--parked-key", "b", code=2)["what"]
    assert "not parked" in tailrace(*give_up, "--parked-key", "a", "--aggregate", "user", code=2)["what"]
    assert connector.stop() == 0
    # A recovery does not publish the event after later ones, and reports the problem.
    plan = tailrace("recover", "plan", parking.file, "--force")
    assert any("parked" in note for note in plan["notes"])
    assert tailrace("recover", "apply", parking.file, "--force", "--yes")["published"] == 0
    (shown,) = tailrace("dlq", "parked", parking.file)["keys"]
    assert shown["waiting"] == 3
    # Request it while no pipeline runs, and kill the pipeline while it carries it out.
    monkeypatch.setattr(parked_keys, "ANSWER_SECONDS", 0.1)
    assert tailrace(*give_up, "--parked-key", "a")["summary"] == {"requested": 1}
    for point in (failpoints.AFTER_PRODUCE, failpoints.AFTER_COMMIT):
        parking.start(kill=point).ended()
    parking.start()
    arrived(parking, *behind)
    parked(parking, 0)
    assert ids(parking, "a") == behind
    assert tailrace("dlq", "parked", parking.file)["keys"] == []
    report = tailrace("verify", parking.file)
    assert (report["clean"], report["discarded"], report["published"]) == (True, 1, 4)
    # A key that still has its dead letter can be discarded by key, too, while the pipeline runs.
    monkeypatch.undo()
    parking.insert(BAD, key="c")
    last = parking.insert(good(1), key="c")
    parked(parking)
    assert tailrace(*give_up, "--parked-key", "c")["summary"] == {"released": 1}
    arrived(parking, last)
