"""Events that have waited too long for an earlier version are applied or dead-lettered."""

from __future__ import annotations

from helpers.worker_setup import async_test, event, opened
from tailrace.projections.core.store import EntityState, EventOutcome
from tailrace.projections.core.versions import Versions


@async_test
async def test_an_event_that_waits_too_long_is_dead_lettered() -> None:
    setup = await opened(versions=Versions(gaps="wait", timeout=60))
    await setup.worker.process(
        [event(0, entity_version="1"), event(1, entity_version="3"), event(2, entity_version="4")]
    )
    setup.now += 59
    await setup.worker.expire()
    assert setup.dead_letters == []
    setup.now += 2
    await setup.worker.expire()
    assert [name for name, _ in setup.dead_letters] == ["e1", "e2"]
    assert setup.store.records.waiting == {}
    assert setup.store.outcomes()["e1"] is EventOutcome.DEAD
    # The missing event, then the redriven ones.
    again = [event(4, id="e1", entity_version="3"), event(5, id="e2", entity_version="4")]
    await setup.worker.process([event(3, entity_version="2"), *again])
    assert setup.history() == ["e0", "e3", "e1", "e2"]


@async_test
async def test_an_expired_event_whose_predecessor_was_applied_is_applied() -> None:
    """Its predecessor was applied without releasing it."""
    setup = await opened(versions=Versions(gaps="wait", timeout=60), max_attempts=2)
    waits = [event(n, entity_version=str(version)) for n, version in ((1, 3), (2, 4), (3, 4), (4, 6))]
    await setup.worker.process([event(0, entity_version="1"), *waits])
    assert setup.history() == ["e0"]
    setup.store.records.entities["k"] = EntityState(2, deleted=False)
    setup.now += 61
    setup.fails["e1"] = 1
    await setup.worker.expire()
    assert setup.history()[:2] == ["e0", "e1"]
    assert setup.history()[2:] in (["e2"], ["e3"]), "the other one is a second version 4"
    assert [(name, "version 6" in failure.explanation) for name, failure in setup.dead_letters] == [("e4", True)]
    assert setup.store.records.waiting == {}
    assert sorted(setup.store.outcomes().values()) == ["applied", "applied", "applied", "dead", "stale"]


@async_test
async def test_an_expired_event_that_fails_is_dead_lettered_for_its_own_reason() -> None:
    setup = await opened(versions=Versions(gaps="wait", timeout=60), max_attempts=2)
    await setup.worker.process(
        [event(0, entity_version="1"), event(1, entity_version="3"), event(2, entity_version="4")]
    )
    setup.store.records.entities["k"] = EntityState(2, deleted=False)
    setup.now += 61
    setup.fails["e1"] = 99
    await setup.worker.expire()
    assert [name for name, _ in setup.dead_letters] == ["e1", "e2"]
    assert "it fails" in setup.dead_letters[0][1].explanation
    assert "waited" in setup.dead_letters[1][1].explanation
    assert setup.store.records.waiting == {}
    assert setup.store.outcomes() == {"e0": EventOutcome.APPLIED, "e1": EventOutcome.DEAD, "e2": EventOutcome.DEAD}


@async_test
async def test_a_released_event_that_fails_is_dead_lettered_itself() -> None:
    """Not the event that it had waited for."""
    setup = await opened(versions=Versions(gaps="wait"), max_attempts=2)
    setup.fails["e0"] = 99
    await setup.worker.process([event(0, entity_version="2")])
    await setup.worker.process([event(1, entity_version="1"), event(2, key="other", entity_version="1")])
    assert setup.history() == ["e1"]
    assert setup.history("other") == ["e2"]
    assert [name for name, _ in setup.dead_letters] == ["e0"]
    assert setup.store.records.waiting == {}
