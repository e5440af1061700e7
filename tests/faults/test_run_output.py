"""The log of `tailrace run` while it waits, fails and stops: each event once, with cause and remedy."""

from __future__ import annotations

import json

from helpers import warm_processes as warm
from helpers.shop import Shop
from tailrace.testkit.stack.ports import free_port


def test_a_stop_while_kafka_is_unavailable(shop: Shop) -> None:
    shop.configure(kafka={"bootstrap": f"127.0.0.1:{free_port()}"})
    connector = shop.start(wait=False)
    connector.says('"waiting"')
    assert connector.stop() == 0
    lines = [json.loads(line) for line in connector.log.splitlines()]
    waiting = next(line for line in lines if line["event"] == "waiting")
    assert (waiting["error"], bool(waiting["why"]), bool(waiting["remedy"])) == ("KafkaUnavailable", True, True)
    assert [line["event"] for line in lines if line["event"] != "waiting"] == ["stopped"]


def test_a_failure_is_logged_once_with_cause_and_remedy(shop: Shop) -> None:
    shop.start().stop()
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    for as_json in (False, True):
        ran = warm.run("run", str(shop.file), "--log-json" if as_json else "--log-text")
        assert ran.returncode == 3, ran.stderr
        assert ran.stderr.count("SlotMissing") == 1, ran.stderr
        assert "published" not in ran.stderr.partition("why")[0], ran.stderr
        if as_json:
            (failed,) = (line for line in map(json.loads, ran.stderr.splitlines()) if line["event"] == "failed")
            assert "recover plan" in failed["remedy"]
        else:
            assert "\n  why:    " in ran.stderr
            assert "\n  remedy: " in ran.stderr
