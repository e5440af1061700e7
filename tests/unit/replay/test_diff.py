"""The differences between shadow and original topics, and whether projections recognise replayed events."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

from helpers.memory_store import MemoryStore
from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent, Record, Route, Row
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.projections.faust.app import projection_app
from tailrace.projections.projection import Projection
from tailrace.replay.apply import replayed
from tailrace.replay.diff import Differences, compare_records, is_original
from tailrace.replay.estimate import Estimate
from tailrace.replay.plan import ReplayPlan, Selection
from tailrace.replay.targets import horizons

LOG = LogIdentity("1", 1, "shop", "slot", "public.outbox", "p")
PLAN = ReplayPlan(
    "k7xq2m", "orders", "orders.yaml", 0, "log", "shadow", ".shadow", ("", ""),
    LsnPosition(LOG, 0x10, 0), LsnPosition(LOG, 0x30, 0), Selection(types=("A",), until_ms=100), Estimate(),
)  # fmt: skip


def record(event: str, *, topic: int = 0, partition: int = 0, key: int = 1, value: int = 1) -> tuple[Any, ...]:
    return event, topic, partition, 0, key, value


def differences(shadow: list[Any], real: list[Any], letters: list[Any], **more: bool) -> Counter[str]:
    found = Differences()
    compare_records(shadow, real, letters, found, **more)
    assert found.total == found.counts.total() - found.counts["same"] - found.counts["not_published_either_time"]
    assert found.events <= found.counts.total()
    return +found.counts


def test_every_difference_has_its_name() -> None:
    real = [record(name) for name in "abcdefg"]
    shadow = [
        record("a"), record("b", value=2), record("c", key=2), record("d", partition=1),
        record("e", topic=1, partition=1), record("new"),
    ]  # fmt: skip
    assert differences(shadow, real, [record("f")]) == {
        "same": 1, "value_changed": 1, "key_changed": 1, "partition_changed": 1, "topic_changed": 1,
        "only_in_shadow": 1, "set_aside": 1, "only_in_original": 1,
    }  # fmt: skip


def test_a_dead_letter_that_was_never_published_is_counted_and_no_difference() -> None:
    counts = differences([record("a")], [record("a")], [record("b"), record("c")])
    assert counts == {"same": 1, "not_published_either_time": 2}


def test_of_several_records_that_of_the_same_topic_counts() -> None:
    assert differences([record("a", topic=1)], [record("a", topic=1), record("a", topic=0)], []) == {"same": 1}


def test_events_that_are_not_in_the_table_are_no_difference() -> None:
    assert differences([record("a")], [record("a"), record("purged")], [], is_whole=False) == {"same": 1}


def test_which_original_records_a_plan_covers() -> None:
    values = {"id": "a", "type": "A", "position": "0/20:1", "timestamp": "50"}
    assert is_original(values, None, "t", PLAN)
    for other in (
        {"type": "B"},
        {"timestamp": "100"},
        {"timestamp": "soon"},
        {"position": "0/8:1"},
        {"position": "0/30:1"},
        {"position": "table:5"},
        {"tailrace.replay": "x"},
    ):
        assert not is_original({**values, **other}, None, "t", PLAN), other
    assert is_original({**values, "position": "table:5"}, None, "t", replace(PLAN, origin="table"))


def test_the_processor_of_a_replay_marks_records_and_dead_letters() -> None:
    class Layout:
        def read(self, row: Row) -> OutboxEvent:
            raise NotImplementedError

    processor = EventProcessor(
        Layout(),
        lambda _: Route("t"),
        lambda *_: (None, None),  # type: ignore[arg-type, return-value]
        lambda event, to, _: Record(to.topic, b"v", event.key, [("position", event.position)], 5),
        lambda row, *_: Record("dead", b"v", None, [("tailrace.position", row.position)], 5),
        frozenset(),
        1,
        1,
        park_on=frozenset({Reason.POISON_MESSAGE}),
    )
    event = OutboxEvent("e", "A", "order", b"k", None, None, "0/20:1", 5, [])
    made = replayed(processor, "k7xq2m", suffix=".shadow")
    record = made.make_record(event, Route("t"), (None, None))  # type: ignore[arg-type]
    marks = [("tailrace.replay", "k7xq2m"), ("tailrace.shadow", ".shadow")]
    assert record == Record("t.shadow", b"v", b"k", [("position", "0/20:1"), *marks], 5)
    letter = made.make_dead_letter(Row((), (), "0/20:1", 5), event, "t", Rejected(Reason.POISON_MESSAGE, ""))
    assert (letter.topic, letter.headers[-2:]) == ("dead.shadow", marks)
    same = replayed(processor, "k7xq2m").make_record(event, Route("t"), (None, None))  # type: ignore[arg-type]
    assert (same.topic, same.headers[1:]) == ("t", marks[:1])
    assert made.route(event) == Route("t")
    assert not made.park_on


def test_the_markers_of_projections() -> None:
    async def ask(first_ms: int | None) -> dict[str, bool]:
        app = projection_app("summary")
        store, other = MemoryStore(), MemoryStore()
        Projection(app, "shop.orders", store=store, name="orders")
        Projection(app, "shop.orders", "x", store=other, name="skipping", on_replay="skip")
        Projection(app, "shop.users", store=MemoryStore(), name="users")
        for each, name in ((store, "orders"), (other, "skipping")):
            await each.open(name)
            await each.prune(1000, 10)
            await each.close()
        return {each["projection"]: each["covered"] for each in await horizons(app, ["shop.orders"], first_ms)}

    assert asyncio.run(ask(999)) == {"orders": False, "skipping": True}
    assert asyncio.run(ask(1000)) == {"orders": True, "skipping": True}
    assert asyncio.run(ask(None)) == {"orders": True, "skipping": True}
