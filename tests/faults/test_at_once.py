"""Two replays or recoveries at once, or one that is stopped: one continues, nothing is duplicated."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec

from helpers import warm_processes as warm
from helpers.command import Output, Tailrace
from helpers.parking import good
from helpers.recovery import goes_on, plan, ran_before, recover, right, slot_dropped, work
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.config.load import load_pipeline
from tailrace.errors import Fenced, RecordsRefused, SlotMissing, TailraceError
from tailrace.recovery.apply import RecoveryResult, RecoveryRun, fence
from tailrace.recovery.plan import RecoveryPlanner
from tailrace.recovery.row_filter import RowFilter
from tailrace.state.ownership import Ownership
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.wakeup import Wakeup
from tailrace.worker.wiring import wire

MANY = 1200
"""Rows, one per batch: enough to stop a run in the middle."""
INSERT = (
    "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), 'order', 'k', "
    """'OrderPlaced', '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}' FROM generate_series(1, %s)"""
)


class Command:
    """A command in its own process."""

    def __init__(self, output: Path, *arguments: object) -> None:
        self.output = output
        self.process = warm.Process([*warm.TAILRACE, *map(str, arguments), "--json"], output=output)
        self.pid = self.process.pid


Begin = Callable[..., Command]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a command."""
    begun: list[Command] = []

    def begin(*arguments: object) -> Command:
        begun.append(Command(tmp_path / f"command-{len(begun)}.log", *arguments))
        return begun[-1]

    yield begin
    for command in begun:
        command.process.kill()


def ended(command: Command) -> tuple[int, str]:
    return command.process.wait(90), command.output.read_text()


def end(shop: Shop) -> int:
    """Returns the size of the topic, with transaction markers: cheaper than reading it."""
    places = {TopicPartition(shop.topic, number): OffsetSpec.latest() for number in range(3)}
    admin = shop.kafka.admin()
    return sum(found.result(10).offset for found in admin.list_offsets(places).values())


def in_the_middle(shop: Shop, command: Command, before: int) -> None:
    """Waits until it has published some of its events; `before` is where the topic ended."""

    def some() -> bool:
        assert command.process.poll() is None, f"it was over too soon: {command.output.read_text()}"
        return end(shop) > before

    wait_until(some, 60, what="the first events")


def again(shop: Shop, planned: Output) -> Counter[str]:
    """Counts the events that the replay has published, by id."""
    found = read_all(shop.kafka.bootstrap, [shop.topic])
    return Counter(header(each, "id") for each in found if header(each, "tailrace.replay") == planned["id"])


@pytest.fixture
def replayable(shop: Shop, tailrace: Tailrace) -> tuple[Shop, Output]:
    """Many published events, and a plan to publish them again one by one."""
    shop.configure(source={"replay_window": "1 GiB"})
    connector = shop.start()
    shop.execute(INSERT, MANY)
    wait_until(lambda: len(shop.published()) == MANY, 60, what="the records")
    assert connector.stop() == 0
    shop.configure(limits={"batch_records": 1})
    return shop, tailrace("replay", "plan", shop.file, "--from", "oldest")


def replayed_once(shop: Shop, planned: Output) -> None:
    assert set(again(shop, planned).values()) == {1}
    assert set(again(shop, planned)) == shop.in_outbox()


def test_of_two_replays_of_one_plan_one_is_fenced(replayable: tuple[Shop, Output], begin: Begin) -> None:
    """The second takes over; the first is fenced, even if it resumes much later."""
    shop, planned = replayable
    before = end(shop)
    first = begin("replay", "apply", planned["file"])
    in_the_middle(shop, first, before)
    os.kill(first.pid, signal.SIGSTOP)
    shop.configure(limits={"batch_records": 100})
    second = begin("replay", "apply", planned["file"])
    assert ended(second)[0] == 0
    assert 0 < sum(again(shop, planned).values()) == MANY
    os.kill(first.pid, signal.SIGCONT)
    code, said = ended(first)
    # Where it was suspended decides how it is fenced: at once, or as a commit of unknown outcome that it checks.
    assert code in (0, 4), said
    replayed_once(shop, planned)


def test_a_replay_that_is_stopped(replayable: tuple[Shop, Output], begin: Begin, tailrace: Tailrace) -> None:
    shop, planned = replayable
    before = end(shop)
    process = begin("replay", "apply", planned["file"])
    in_the_middle(shop, process, before)
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process)[0] == 130
    assert not shop.undecided(), "no transaction is left open for readers to wait for"
    assert 0 < len(again(shop, planned)) < MANY, "it was in the middle"
    shop.configure(limits={"batch_records": 100})
    assert tailrace("replay", "apply", planned["file"])["continued"]
    replayed_once(shop, planned)


@pytest.fixture
def lost(shop: Shop) -> tuple[Shop, int]:
    """A pipeline without its slot that has missed many rows, and where its topic ended before."""
    shop.configure(source={"start": "beginning"})
    ran_before(shop)
    before = end(shop)
    slot_dropped(shop)
    for _ in range(MANY // 10):
        shop.writers[0].transaction(10, rollback=False)
    shop.configure(limits={"batch_records": 1})
    return shop, before


@pytest.mark.slow
def test_a_recovery_that_is_fenced(lost: tuple[Shop, int], begin: Begin) -> None:
    """While it works, or while it is suspended: it is fenced, and the later one closes the gap."""
    shop, before = lost
    first = begin("recover", "apply", shop.file, "--yes")
    in_the_middle(shop, first, before)
    second = begin("recover", "apply", shop.file, "--yes")
    code, said = ended(first)
    assert (code, "Fenced" in said) == (4, True), said
    in_the_middle(shop, second, end(shop))
    os.kill(second.pid, signal.SIGSTOP)
    shop.configure(limits={"batch_records": 100})
    code, said = ended(begin("recover", "apply", shop.file, "--yes"))
    assert (code, '"complete": true' in said) == (0, True), said
    right(shop)
    os.kill(second.pid, signal.SIGCONT)
    code, said = ended(second)
    assert (code, "Fenced" in said) == (4, True), said
    assert plan(shop)["case"] is None, "who was overtaken has nothing to say about it"
    goes_on(shop)


def test_two_recoveries_at_once(lost: tuple[Shop, int], begin: Begin) -> None:
    """One that is not done is refused or fenced, and reports it; if both are, a third closes the gap."""
    shop, _ = lost
    shop.configure(limits={"batch_records": 20})
    pair = [begin("recover", "apply", shop.file, "--yes") for _ in range(2)]
    codes = [ended(process)[0] for process in pair]
    assert set(codes) <= {0, 2, 3, 4}, codes
    if 0 not in codes:
        assert recover(shop, "apply", "--yes").returncode == 0
    goes_on(shop)


class Slow(RecoveryRun):
    """A recovery that is delayed when a record was refused: `in_between` runs before it continues."""

    def __init__(self, *arguments: Any, in_between: Callable[[], None], before_handling: bool, **more: Any) -> None:
        """`before_handling`: the delay is before the refusal is handled."""
        super().__init__(*arguments, **more)
        self._in_between, self._before_handling = in_between, before_handling

    def _attempt(self, row_filter: RowFilter, *, resume: bool) -> RecoveryResult:
        if resume and not self._before_handling:
            self._in_between()
        try:
            return super()._attempt(row_filter, resume=resume)
        except RecordsRefused:
            if self._before_handling:
                self._in_between()
            raise


def ends_with(error: type[TailraceError], shop: Shop, kind: type[RecoveryRun] = RecoveryRun, **more: Any) -> None:
    """Runs a recovery in this process and expects the error."""
    survey = RecoveryPlanner(wire(load_pipeline(shop.file)))
    ownership = Ownership(survey.wiring.kafka, "slow")
    try:
        fence(survey.wiring, ownership)
        plan = survey.plan(survey.case())
        with pytest.raises(error):
            kind(survey, plan, ownership=ownership, wakeup=Wakeup(), **more).run()
    finally:
        survey.close()


@pytest.mark.slow
def test_a_recovery_that_is_fenced_when_a_record_was_refused(shop: Shop) -> None:
    """It does not continue with outdated state, nor does it disturb the one that took over."""
    shop.configure(source={"start": "beginning"})
    ran_before(shop)
    shop.insert(json.dumps({**json.loads(good(1)), "note": "n" * 5000}), key="large")
    entry = ConfigEntry("max.message.bytes", "3000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", shop.topic, incremental_configs=[entry])
    admin = shop.kafka.admin()
    for each in admin.incremental_alter_configs([resource]).values():
        each.result(20)
    slot_dropped(shop)

    def another() -> None:
        assert recover(shop, "apply", "--yes").returncode == 0

    def each_once() -> None:
        seen = Counter(each.id for each in [*shop.published(), *shop.dead_lettered()])
        assert seen == Counter(shop.in_outbox())

    ends_with(Fenced, shop, Slow, in_between=another, before_handling=False)
    each_once()
    shop.insert(json.dumps({**json.loads(good(1)), "note": "n" * 5000}), key="large")
    slot_dropped(shop)
    wiring = wire(load_pipeline(shop.file))
    publisher = wiring.publisher(wiring.admin(), Wakeup(), lambda *_: None)

    def begun() -> None:
        Ownership(wiring.kafka, "another").take()
        publisher.open()

    ends_with(Fenced, shop, Slow, in_between=begun, before_handling=True)
    assert publisher.stored is not None
    publisher.store(publisher.stored)
    publisher.close()
    another()
    each_once()


@pytest.mark.slow
def test_a_fenced_recovery_leaves_the_other_slot_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fenced one leaves the other's slot alone; none is complete if its own slot is lost."""
    shop.configure(source={"start": "beginning"})
    ran_before(shop)
    work(shop)
    shop.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", shop.slot)

    def another(point: str) -> None:
        if point == failpoints.SLOT_INTENDED:
            assert recover(shop, "apply", "--yes").returncode == 0

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reached", another)
        ends_with(Fenced, shop)
    goes_on(shop)
    slot_dropped(shop)

    def dropped(rows: int) -> None:
        if rows == 1:
            shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)

    ends_with(SlotMissing, shop, on_progress=dropped)
    assert plan(shop)["unfinished"]
    assert recover(shop, "apply", "--yes").returncode == 0
    goes_on(shop)


@pytest.mark.slow
def test_a_recovery_that_is_stopped(lost: tuple[Shop, int], begin: Begin) -> None:
    shop, before = lost
    process = begin("recover", "apply", shop.file, "--yes")
    in_the_middle(shop, process, before)
    os.kill(process.pid, signal.SIGTERM)
    code, said = ended(process)
    assert (code, '"complete": false' in said) == (130, True), said
    assert not shop.undecided(), "no transaction is left open for readers to wait for"
    shop.start(wait=False).failed("RecoveryUnfinished")
    assert 0 < plan(shop)["missed"] < MANY + 9
    shop.configure(limits={"batch_records": 100})
    assert recover(shop, "apply", "--yes").returncode == 0
    goes_on(shop)
