"""A backlog of large payloads, checked with a helper: what is published, set aside or waits is the same as without.

The helper is killed on the way, or nothing happens to it; the pipeline must neither notice nor lose anything.
"""

from __future__ import annotations

import signal
from collections import defaultdict

import psutil
import pytest

from fix_shop import Connector, Shop
from tailrace.stack import StackError, wait_until

ROWS = 40_000
KEYS = 200
EVERY = 1999
"""So many rows apart are those that break their schema: of some keys, each somewhere else."""
BACKLOG = f"""
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
SELECT gen_random_uuid(), 'order', 'k' || number % {KEYS}, 'OrderPlaced', jsonb_build_object(
    'order', 'o-' || number, 'revision', 1, 'amount', number,
    'currency', CASE WHEN number % {EVERY} = 0 THEN 'eur' ELSE 'EUR' END, 'note', repeat('n', 500))
FROM generate_series(1, {ROWS}) AS number
"""


def helper_of(connector: Connector) -> psutil.Process | None:
    for child in psutil.Process(connector.process.pid).children():
        if "tailrace.schemas.helper_process" in child.cmdline():
            return child
    return None


def backlog(shop: Shop) -> dict[str, list[tuple[str, bool]]]:
    """Of each key, the ids in their order, and whether they obey."""
    shop.start().stop()
    shop.execute(BACKLOG)
    found = defaultdict(list)
    for event, key, obeys in shop.execute(
        "SELECT id::text, aggregateid, payload->>'currency' = 'EUR' FROM outbox ORDER BY (payload->>'amount')::int"
    ):
        found[key].append((event, obeys))
    return found


def on_topic(shop: Shop) -> dict[str, list[str]]:
    found = defaultdict(list)
    for seen in shop.published():
        found[seen.key].append(seen.id)
    return found


@pytest.mark.parametrize("killed", [False, True], ids=["lives", "killed"])
def test_the_same_is_published(shop: Shop, killed: bool) -> None:
    told = backlog(shop)
    connector = shop.start()
    helper = wait_until(lambda: helper_of(connector), 60, what="a helper")
    if killed:
        helper.send_signal(signal.SIGKILL)
    last = shop.insert('{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}', key="last")
    wait_until(lambda: "last" in on_topic(shop), 120, what=f"the end of it:\n{connector.log}")
    expected = {key: [event for event, obeys in events if obeys] for key, events in told.items()}
    assert on_topic(shop) == {**expected, "last": [last]}
    broken = [event for events in told.values() for event, obeys in events if not obeys]
    assert sorted(seen.id for seen in shop.dead_lettered()) == sorted(broken)
    assert connector.stop() == 0
    assert not helper.is_running()


def test_what_waits_behind_a_parked_key_is_not_published(shop: Shop) -> None:
    shop.configure(on_invalid="park")
    told = backlog(shop)
    connector = shop.start()
    helper = wait_until(lambda: helper_of(connector), 60, what="a helper")
    shop.insert('{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}', key="last")
    wait_until(lambda: "last" in on_topic(shop), 120, what=f"the end of it:\n{connector.log}")
    expected: dict[str, list[str]] = {}
    for key, events in told.items():
        first_bad = next((at for at, (_, obeys) in enumerate(events) if not obeys), len(events))
        expected[key] = [event for event, _ in events[:first_bad]]
    found = on_topic(shop)
    del found["last"]
    assert found == expected
    assert connector.stop() == 0
    assert not helper.is_running()


def test_a_pipeline_can_do_without(shop: Shop) -> None:
    shop.configure(schemas={"folder": "schemas", "helper": False})
    backlog(shop)
    connector = shop.start()
    shop.insert('{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}', key="last")

    def ended() -> bool:
        assert helper_of(connector) is None
        return "last" in on_topic(shop)

    try:
        wait_until(ended, 120, what="the end of it")
    except StackError:
        raise AssertionError(connector.log) from None
