"""The offsets that a projection starts from, wrong declarations, and the tester without a broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Collection
from typing import Any

import pytest
from pydantic import BaseModel

from helpers.memory_store import MemoryStore
from tailrace.errors import ConfigError, Reason
from tailrace.projections import ProjectionTester, Versions, projection_app
from tailrace.projections.core.event import Event
from tailrace.projections.core.store import Partition
from tailrace.projections.projection import Projection
from tailrace.projections.reader.offset_coordinator import OffsetCoordinator, StoredOffset
from tailrace.projections.rebuild.reset import Move, _require_markers, parse_time

P0, P1 = Partition("orders", 0), Partition("orders", 1)


class Placed(BaseModel):
    amount: int


def make(*topics: str, name: str = "orders", **choices: Any) -> Projection:
    return Projection(projection_app("app"), *(topics or ("orders",)), store=MemoryStore(), name=name, **choices)


def test_a_handler_without_parentheses_is_refused() -> None:
    """It would leave the projection without a handler, and all events would be skipped."""
    orders = make()

    async def handle(event: Event, effects: Any) -> None:
        """Handles nothing."""

    with pytest.raises(ConfigError, match="not an event type"):
        orders.on(handle)  # type: ignore[arg-type]


def test_a_rebuild_that_has_caught_up_starts_no_worker_again() -> None:
    async def scenario() -> None:
        orders = make()
        coordinator = OffsetCoordinator([orders])
        await coordinator.positions([P0])
        await coordinator.assigned({P0: [0]})
        assert set(orders.workers) == {P0}
        await orders.finish()
        await coordinator.assigned({P0: [0]})
        assert orders.workers == {}
        await orders.close()

    asyncio.run(scenario())


async def asynchronous(event: Event) -> None:
    """Returns a coroutine instead of an entity, a version or data."""


@pytest.mark.parametrize(
    ("topics", "choices", "expected"),
    [
        ((), {}, "reads no topic"),
        (("a", "b"), {"versions": Versions()}, "has no `entity` function"),
        (("a",), {"events": 0}, "events=0"),
        (("a",), {"entity": asynchronous}, "`entity` of app is asynchronous"),
        (("a",), {"version": asynchronous}, "`version` of app is asynchronous"),
        (("a",), {"decode": asynchronous}, "`decode` of app is asynchronous"),
        (("a",), {"on_failure": "ignore"}, "on_failure='ignore'"),
        (("a",), {"on_replay": "twice"}, "on_replay='twice'"),
    ],
)
def test_a_wrong_declaration_is_refused(topics: tuple[str, ...], choices: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as raised:
        Projection(projection_app("app"), *topics, store=MemoryStore(), **choices)
    assert raised.value.remedy


def test_two_projections_of_one_name_are_refused() -> None:
    app = projection_app("app")
    Projection(app, "a", store=MemoryStore())
    with pytest.raises(ConfigError, match="have the name app"):
        Projection(app, "b", store=MemoryStore())


def test_the_tester_applies_events_as_a_worker_does() -> None:
    orders = make(versions=Versions(), max_attempts=2)

    @orders.on("Placed", model=Placed)
    async def placed(event: Event, effects: Any) -> None:
        row = await effects.fetch_one("totals", {"key": event.entity}) or {"amount": 0}
        effects.upsert("totals", {"key": event.entity}, {"amount": row["amount"] + event.data.amount})

    @orders.on("Broken")
    async def broken(event: Event, effects: Any) -> None:
        raise KeyError("colour")

    async def scenario() -> None:
        async with ProjectionTester(orders) as tester:
            first = await tester.send("Placed", {"amount": 3}, key="o-1", version=1)
            await tester.send("Placed", {"amount": 3}, key="o-1", version=1, event_id=first.id)
            await tester.send("Placed", {"amount": 100}, key="o-1", version=1)
            await tester.send("Placed", {"amount": 4}, key="o-1", version=2)
            await tester.send("Placed", {"amount": "much"}, key="o-1", version=3)
            await tester.send("Broken", {}, key="o-1", version=4)
            await tester.send("Unheard", {}, key="o-1", version=5)
            reasons = [letter.failure.reason for letter in tester.dead_letters]
            assert reasons == [Reason.SCHEMA_VALIDATION_FAILED, Reason.MAX_RETRIES_EXCEEDED]
            assert dict(tester.outcomes) == {"applied": 2, "duplicate": 1, "stale": 1, "dead": 2, "skipped": 1}
            async with tester.effects() as effects:
                assert (await effects.fetch_one("totals", {"key": "o-1"}))["amount"] == 7

    asyncio.run(scenario())


def test_all_partitions_of_a_new_topic_start_with_the_latest_at_once() -> None:
    """Otherwise a second worker would take its partitions for added ones, and read them from their beginning."""

    async def scenario() -> None:
        asked: list[list[str]] = []

        async def ends(topics: Collection[str]) -> dict[Partition, int]:
            asked.append(list(topics))
            return {P0: 12, P1: 5} if topics else {}

        one = make(name="one", start="latest")
        coordinator = OffsetCoordinator([one, make(name="two", start="earliest")])
        await coordinator.store_latest(ends)
        assert (await coordinator.positions([P1]))[P1] == [StoredOffset(5, "earliest"), StoredOffset(None, "earliest")]
        await one.store.reset({P0: 20})
        await coordinator.store_latest(ends)
        assert await one.store.positions() == {P0: 20, P1: 5}
        assert asked == [["orders"], []]

    asyncio.run(scenario())


def test_each_projection_of_a_partition_has_its_own_offset() -> None:
    async def scenario() -> None:
        one, two = make(name="one", start="latest"), make(name="two", start="latest")
        coordinator = OffsetCoordinator([one, two])
        new = StoredOffset(None, "latest")
        assert await coordinator.positions([P0]) == {P0: [new, new]}
        await one.store.reset({P0: 9})
        # A partition that was added to a topic it knows is read from its beginning.
        assert await coordinator.positions([P0, P1]) == {
            P0: [StoredOffset(9, "earliest"), new],
            P1: [StoredOffset(None, "earliest"), new],
        }
        await coordinator.assigned({P0: [9, 12], P1: [0, 5]})
        assert (one.workers[P0].next, two.workers[P0].next) == (9, 12)
        assert coordinator.progress() == {P0: 9, P1: 0}
        await coordinator.revoked()
        assert coordinator.progress() == {}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("earliest", None),
        ("latest", None),
        ("1970-01-01T00:01", 60_000),
        ("1970-01-01T01:01+01:00", 60_000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_points_in_a_topic_are_parsed(text: str, found: int | None) -> None:
    assert parse_time(text) == found


@pytest.mark.parametrize("text", ["", "yesterday", "12", "0/1A2B", "-1"])
def test_an_invalid_point_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a point") as raised:
        parse_time(text)
    assert "earliest" in raised.value.remedy


@pytest.mark.parametrize(
    ("stored", "target", "safe", "refused"),
    [(10, 5, 5, False), (10, 4, 5, True), (None, 0, 5, False), (3, 4, 5, False), (10, 0, 0, False)],
)
def test_only_a_reset_to_before_the_markers_is_refused(
    stored: int | None, target: int, safe: int, refused: bool
) -> None:
    def check() -> None:
        _require_markers("orders", [Move(P0, stored, target)], {P0: safe}, 1)

    if refused:
        with pytest.raises(Exception, match="not before 5"):
            check()
    else:
        check()


@pytest.mark.parametrize(
    ("library", "name", "extra"), [("faust", "projection_app", "faust"), ("pymongo", "MongoStore", "mongo")]
)
def test_an_import_without_its_extra_says_what_to_install(library: str, name: str, extra: str) -> None:
    program = f"import sys; sys.modules[{library!r}] = None; from tailrace.projections import {name}"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: tailrace.projections.{name} needs {library}, which is not installed.")
    assert f"pip install '.[{extra}]'" in last
