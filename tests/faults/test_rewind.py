"""A rewound pipeline publishes everything since then again, marked as replayed, and nothing else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from helpers import warm_processes as warm
from helpers.command import Tailrace
from helpers.parking import ask, first_letters, good, parking_state
from helpers.service import Service
from helpers.shop import Shop
from helpers.users import Users
from tailrace.config.load import load_pipeline
from tailrace.positions.postgres import LsnPosition, format_lsn
from tailrace.state import position_history
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.worker.options import kafka_options


def again(service: Service) -> tuple[Counter[str], Counter[str]]:
    """Returns how often each event is there for the first time, and how often as a replay."""
    found: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for message in read_all(service.kafka.bootstrap, [service.topic]):
        found[bool(header(message, "tailrace.replay"))][header(message, "id")] += 1
    return found


def entries(service: Service) -> list[position_history.PositionEntry]:
    return position_history.read(kafka_options(load_pipeline(service.file)))


def write(service: Service, number: int) -> list[str]:
    """Publishes some transactions; returns the ids in order."""
    writer = service.writers[0] if service.writers else service.writer()
    known = {entry.id for entry in writer.written}
    for _ in range(number):
        writer.transaction(rollback=False)
    assert not service.caught_up().missing
    return [entry.id for entry in writer.written if entry.id not in known]


def noted(service: Service) -> position_history.PositionEntry:
    """Waits until the position history has the stored position."""

    def found() -> position_history.PositionEntry | None:
        at = service.positions()[-1].progress
        return next((entry for entry in entries(service) if entry.position.progress >= at), None)

    return wait_until(found, 60, what="an entry of the position history")


@pytest.mark.slow
def test_postgres_rewound_inside_its_window(shop: Shop, tailrace: Tailrace) -> None:
    shop.configure(source={"replay_window": "1 GiB"})
    file = str(shop.file)
    running = shop.start()
    first = write(shop, 3)
    entry = noted(shop)
    later = write(shop, 4)
    assert entry.offsets[shop.topic]
    assert sum(entry.offsets[shop.topic].values()) > 0
    assert entry.passed.count(":") == 2, "a snapshot before the position is known"
    refused = tailrace("position", "reset", file, "--to", str(entry.position), "--yes", code=2)
    assert "RUNNING" in refused["what"]
    assert running.stop() == 0
    before = shop.positions()[-1]
    assert (shop.confirmed_lsn() or 0) < before.lsn, "nothing is held back: nothing is tested here"

    # A refused reset changes nothing.
    for point, code, word in [
        ("soon", 2, "is not a point"),
        ("1773403200.7", 2, "not a point in the log of this database"),
        ("FFFF/0", 2, "future"),
        (format_lsn(8), 2, "no longer reaches"),
        ("event:nobody", 2, "no record"),
        ("10 w", 2, "not known"),
    ]:
        assert word in tailrace("position", "reset", file, "--to", point, "--yes", code=code)["what"], point
    assert shop.positions()[-1] == before

    result = tailrace("position", "show", file, "--at", f"event:{later[0]}")
    done = tailrace("position", "reset", file, "--to", f"event:{later[0]}", "--yes")
    assert done["position"] == {"position": result["position"], "at_ms": result["at_ms"]}
    restarted = shop.start()
    wait_until(lambda: not set(later) - again(shop)[1].keys(), 60, what="everything since then to come again")
    once, twice = again(shop)
    assert twice == Counter(later), restarted.log
    newer = write(shop, 2)
    assert again(shop)[1] == twice, "what comes for the first time is not marked"
    assert set(once) >= {*first, *later}
    assert set(again(shop)[0]) >= set(newer)
    verdict = tailrace("verify", file)
    assert verdict["clean"]
    assert verdict["published_again"] == len(later)
    assert restarted.stop() == 0


@pytest.mark.slow
def test_a_killed_reset_is_done_completely_or_not_at_all(shop: Shop, tailrace: Tailrace) -> None:
    shop.configure(source={"replay_window": "1 GiB"})
    shop.start()
    events = write(shop, 3)
    shop.connectors[-1].stop()
    before = shop.positions()[-1]
    for point, changes in (("after-produce", False), ("after-commit", True)):
        warm.killed("position", "reset", shop.file, "--to", f"event:{events[0]}", "--yes", at=point)
        assert (shop.positions()[-1] != before) == changes
    shop.start()
    wait_until(lambda: not set(events) - again(shop)[1].keys(), 60, what="everything since then to come again")
    assert again(shop) == (Counter(events), Counter(events))
    assert tailrace("verify", str(shop.file))["clean"]


def test_without_a_window_nothing_can_be_rewound(shop: Shop, tailrace: Tailrace) -> None:
    shop.start()
    write(shop, 1)
    assert shop.connectors[-1].stop() == 0
    before = shop.positions()
    refused = tailrace("position", "reset", str(shop.file), "--to", "oldest", "--yes", code=2)
    assert "oldest is the pipeline's current position" in refused["what"]
    assert "replay_window" in refused["remedy"]
    assert shop.positions() == before


@pytest.mark.slow
def test_mongo_rewound(users: Users, tailrace: Tailrace) -> None:
    file = str(users.file)
    users.start()
    first = write(users, 3)
    noted(users)
    later = write(users, 3)
    users.connectors[-1].stop()
    shown = tailrace("position", "show", file)
    assert shown["offsets"][users.topic]
    assert shown["oldest"] is not None
    with users.client() as client:
        wait_until(
            lambda: client.admin.command("hello")["operationTime"].time < time.time() - 1,
            60,
            what="the server to be idle for a second",
        )
    now = tailrace("position", "show", file, "--at", "0s")
    assert now["at_ms"] >= shown["at_ms"] // 1000 * 1000, "an idle server's clock stands still: this is its last moment"
    for point, word in [("0/16B3748", "not a point in the log of this database"), ("2000000000.1", "future")]:
        assert word in tailrace("position", "reset", file, "--to", point, "--yes", code=2)["what"], point
    tailrace("position", "reset", file, "--to", f"event:{later[0]}", "--yes")
    users.start()
    wait_until(lambda: not set(later) - again(users)[1].keys(), 60, what="everything since then to come again")
    assert again(users) == (Counter([*first, *later]), Counter(later))
    assert tailrace("verify", file)["clean"]


def test_an_idle_outbox_moves_its_slot_behind_a_window(shop: Shop) -> None:
    """I8: the log is confirmed, one window behind."""
    shop.configure(source={"replay_window": "64 KiB"})
    shop.start()
    held = shop.confirmed_lsn() or 0
    shop.execute("CREATE TABLE noise (text text)")
    shop.execute("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
    wait_until(lambda: (shop.confirmed_lsn() or 0) > held + 1_000_000, 60, what="the slot to follow")
    assert isinstance(shop.positions()[-1], LsnPosition)
    assert shop.positions()[-1].lsn - (shop.confirmed_lsn() or 0) >= 32 * 1024


def test_a_position_history_that_cannot_be_written_stops_nothing(shop: Shop, make_topic: Callable[..., None]) -> None:
    """A topic that rejects our entries: logged once, and events are published."""
    offsets = f"{shop.name}-offsets"
    make_topic(f"{offsets}-ledger", max_message_bytes="100")
    shop.configure(kafka={"offsets_topic": offsets})
    connector = shop.start()
    shop.writer().transaction(rollback=False)
    connector.says('"position history"')
    shop.writers[0].transaction(rollback=False)
    wait_until(lambda: len(shop.published()) + len(shop.dead_lettered()) >= 2, 60, what="the events")
    assert connector.running


@pytest.mark.slow
def test_parked_events_of_a_replay_are_marked_when_released(parking: Shop, tailrace: Tailrace) -> None:
    """Parked in a range that is replayed, released long after it, by another start."""
    parking.configure(source={"replay_window": "1 GiB"})
    parking.start()
    events = [parking.insert(good(number), key="a") for number in range(1, 5)]
    wait_until(lambda: set(again(parking)[0]) >= set(events), 60, what="the records")
    assert parking.connectors[-1].stop() == 0
    tailrace("position", "reset", parking.file, "--to", f"event:{events[0]}", "--yes")
    file = parking.folder / "schemas" / "OrderPlaced" / "1.json"
    lenient = file.read_text()
    file.write_text(lenient.replace('"minimum": 1', '"minimum": 2'))
    parking.start()
    wait_until(lambda: len(first_letters(parking)) == 1, 60, what="the first of them to be parked")
    other = parking.insert(good(9), key="b")
    wait_until(lambda: other in again(parking)[0], 60, what="an event behind that stretch")
    assert parking.connectors[-1].stop() == 0
    refused = tailrace("position", "reset", parking.file, "--to", "oldest", "--yes", code=2)
    assert "parked" in refused["what"]
    file.write_text(lenient)
    ask(parking, first_letters(parking)[0], "discard")
    parking.start()
    wait_until(lambda: not parking_state(parking).keys, 60, what="the release")
    assert again(parking) == (Counter([*events, other]), Counter(events[1:]))
    assert tailrace("verify", parking.file)["clean"]


@pytest.mark.slow
def test_an_in_place_plan_without_transactions_runs_once(shop: Shop, tailrace: Tailrace) -> None:
    shop.configure(source={"replay_window": "1 GiB"}, kafka={"delivery": "at_least_once"})
    shop.start()
    events = write(shop, 3)
    assert shop.connectors[-1].stop() == 0
    planned = tailrace("replay", "plan", shop.file, "--from", f"event:{events[0]}", "--in-place")
    before = shop.positions()[-1]
    warm.killed("replay", "apply", planned["file"], at="after-produce")
    assert shop.positions()[-1] == before
    assert tailrace("replay", "apply", planned["file"])["from"]
    moved = shop.positions()[-1]
    assert moved.progress < before.progress
    shop.start()
    wait_until(lambda: not set(events) - again(shop)[1].keys(), 60, what="everything since then to come again")
    wait_until(lambda: shop.positions()[-1].progress >= before.progress, 60, what="the pipeline to be back")
    assert shop.connectors[-1].stop() == 0
    # Another reset meanwhile does not make the plan a new one.
    tailrace("position", "reset", shop.file, "--to", f"event:{events[-1]}", "--yes")
    at = shop.positions()[-1]
    assert tailrace("replay", "apply", planned["file"])["published"] == 0
    assert shop.positions()[-1] == at
