"""`tailrace verify` on real servers: every problem is found and named, and nothing else is reported."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Message, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from helpers.service import Service
from helpers.shop import Shop
from helpers.users import Users
from tailrace.check.health import KafkaStatus
from tailrace.cli import main
from tailrace.routing.partition import partition_of
from tailrace.testkit.oracle import WriteOutcome
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.testkit.workload.writer import Mix
from tailrace.verify import verification

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
INVALID = '{"order": "a", "revision": 1, "amount": "much", "currency": "EUR"}'

DAY_MS = 24 * 3600 * 1000

Output = dict[str, Any]
Verify = Callable[..., Output]
FAULTS = ("missing", "duplicated", "changed", "out_of_order")


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    """Runs the command with --json and returns its output."""

    def run(service: Service, *arguments: str, code: int = 0) -> Output:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(["verify", str(service.file), *arguments, "--json"])
        printed = capsys.readouterr()
        assert caught.value.code == code, printed
        found: Output = json.loads(printed.out or printed.err)
        return found

    return run


def dlq(service: Service, command: str, *arguments: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dlq", command, str(service.file), *arguments, "--yes"])
    assert caught.value.code == 0


def set_aside(service: Service, *events: str) -> None:
    wait_until(lambda: {seen.id for seen in service.dead_lettered()} >= set(events), 60, what="the dead letters")


def on_topic(service: Service, *events: str) -> None:
    wait_until(lambda: {seen.id for seen in service.published()} >= set(events), 60, what="the records")


def records(service: Service) -> dict[str, Message]:
    return {header(message, "id"): message for message in read_all(service.kafka.bootstrap, [service.topic])}


def produce(service: Service, like: Message, **headers: str) -> None:
    """Publishes a copy of a record to the same partition; `headers` replace some of its own."""
    found: Any = like
    producer = Producer({"bootstrap.servers": service.kafka.bootstrap})
    changed = [(name, headers.get(name, value)) for name, value in found.headers()]
    changed += [(name.replace("_", "."), value) for name, value in headers.items() if name not in dict(found.headers())]
    producer.produce(service.topic, found.value(), found.key(), found.partition(), headers=changed)
    assert producer.flush(30) == 0


def invalid(service: Service) -> int:
    """Returns how many committed events cannot be published."""
    written = [entry for writer in service.writers for entry in writer.written]
    return sum(not entry.valid and entry.outcome is WriteOutcome.COMMITTED for entry in written)


def faults(result: Output) -> dict[str, int]:
    return {kind: result[kind] for kind in FAULTS if result[kind]}


def ids(result: Output, kind: str) -> list[str]:
    """Sorted, because examples have no order."""
    return sorted(each["id"] for each in result["examples"].get(kind, []))


def test_a_correct_pipeline_is_clean(shop: Shop, verify: Verify) -> None:
    shop.execute("ALTER TABLE outbox ALTER COLUMN type DROP NOT NULL")
    shop.start()
    writer = shop.writer(mix=Mix(rollback=0.3, invalid=0.1))
    for _ in range(60):
        writer.transaction()
    bad = [shop.insert(INVALID, key=f"bad-{number}") for number in range(3)]
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, payload) VALUES (gen_random_uuid(), 'o', 'k', '{}')"
    )
    set_aside(shop, *bad)
    shop.caught_up()
    letters = 4 + invalid(shop)
    wait_until(lambda: len(shop.dead_lettered()) == letters, 60, what="the letters")
    dlq(shop, "discard", "--key", "bad-1", "--why", "a test")
    (shop.folder / "schemas" / "OrderPlaced" / "1.json").write_text("{}")
    dlq(shop, "redrive", "--key", "bad-2")
    result = verify(shop)
    rows = len(shop.in_outbox())
    assert result["clean"]
    assert not faults(result)
    assert result["rows"] == rows
    assert result["discarded"] == result["published_again"] == 1
    assert result["set_aside"] == letters - 2
    assert result["published"] == rows - result["set_aside"] - 1
    assert result["not_yet"] == result["not_compared"] == result["foreign"] == result["only_on_kafka"] == 0


def test_clean_on_mongodb(users: Users, verify: Verify) -> None:
    users.start()
    writer = users.writer(mix=Mix(rollback=0.3, invalid=0.1))
    for _ in range(40):
        writer.transaction()
    # No event_type: a document that cannot be decoded.
    users.insert(event_type=None)
    users.caught_up()
    letters = 1 + invalid(users)
    wait_until(lambda: len(users.dead_lettered()) == letters, 60, what="the letters")
    result = verify(users)
    assert result["clean"]
    assert not faults(result)
    assert result["rows"] == len(users.in_outbox())
    assert result["set_aside"] == letters
    assert result["published"] == result["rows"] - letters
    assert result["not_yet"] == result["only_on_kafka"] == result["not_compared"] == 0


def test_every_fault_is_named(shop: Shop, verify: Verify, capsys: pytest.CaptureFixture[str]) -> None:
    shop.start()
    events = [shop.insert(VALID, key="k") for _ in range(6)]
    on_topic(shop, *events)
    # The connector only publishes inserts: for the topic, a row with another id was never written.
    ((hole,),) = shop.execute("UPDATE outbox SET id = gen_random_uuid() WHERE id = %s RETURNING id", events[0])
    shop.execute("UPDATE outbox SET payload = payload || '{\"amount\": 2}' WHERE id = %s", events[1])
    shop.execute("DELETE FROM outbox WHERE id = %s", events[2])
    found = records(shop)
    produce(shop, found[events[3]])
    stranger = "00000000-0000-0000-0000-000000000001"
    produce(shop, found[events[5]], id=stranger, position=header(found[events[4]], "position"))
    produce(shop, found[events[4]], tailrace_replay="1")
    result = verify(shop, code=1)
    assert faults(result) == {"missing": 1, "duplicated": 1, "changed": 1, "out_of_order": 1}
    assert ids(result, "missing") == [str(hole)]
    assert ids(result, "duplicated") == [events[3]]
    assert ids(result, "changed") == [events[1]]
    assert ids(result, "out_of_order") == [stranger]
    assert result["only_on_kafka"] == 3  # the old id of the hole, the purged row, the stranger
    assert result["published_again"] == 1
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(shop.file)])
    text = capsys.readouterr().out
    assert caught.value.code == 1
    assert "4 differences" in text
    assert all(each in text for each in (str(hole), events[3], events[1], stranger))


def test_every_fault_is_named_on_mongodb(users: Users, verify: Verify) -> None:
    users.start()
    events = [users.insert(key="k", seq=number) for number in range(1, 6)]
    on_topic(users, *events)
    with users.client() as client:
        outbox = client[users.database]["outbox"]
        outbox.update_one({"event_id": events[0]}, {"$set": {"event_id": "a hole"}})
        outbox.update_one({"event_id": events[1]}, {"$set": {"payload.email": "another"}})
        outbox.update_one({"event_id": events[2]}, {"$set": {"status": "published"}})
        outbox.delete_one({"event_id": events[4]})
    found = records(users)
    produce(users, found[events[3]])
    produce(users, found[events[3]], id="late", position=header(found[events[0]], "position"))
    result = verify(users, code=1)
    assert faults(result) == {"missing": 1, "duplicated": 1, "changed": 1, "out_of_order": 1}
    assert ids(result, "missing") == ["a hole"]
    assert ids(result, "duplicated") == [events[3]]
    assert ids(result, "changed") == [events[1]]
    assert ids(result, "out_of_order") == ["late"]


@pytest.mark.slow
def test_a_pipeline_that_does_not_run_has_not_published_yet(shop: Shop, verify: Verify) -> None:
    result = verify(shop)
    assert result["rows"] == result["records"] == 0
    assert f"there is no topic {shop.topic}" in result["notes"]
    early = shop.insert(VALID)
    assert verify(shop)["not_yet"] == 1  # it was never started
    shop.execute("DELETE FROM outbox WHERE id = %s", early)
    connector = shop.start()
    assert verify(shop)["rows"] == 0
    events = [shop.insert(VALID) for _ in range(3)]
    on_topic(shop, *events)
    assert connector.stop() == 0
    later = [shop.insert(VALID) for _ in range(2)]
    result = verify(shop)
    assert (result["published"], result["not_yet"]) == (3, 2)
    assert ids(result, "not_yet") == sorted(later)
    assert not result["passed"]
    assert any("has not reached the point" in note for note in result["notes"])
    shop.start()
    on_topic(shop, *later)
    assert verify(shop)["published"] == 5


@pytest.mark.slow
def test_a_pipeline_that_lags(shop: Shop, verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    connector = shop.start()
    first = shop.insert(VALID)
    on_topic(shop, first)
    connector.process.send_signal(signal.SIGSTOP)
    later = [shop.insert(VALID) for _ in range(3)]
    result = verify(shop, "--wait", "1")
    assert (result["published"], result["not_yet"]) == (1, 3)
    assert ids(result, "not_yet") == sorted(later)
    wait = verification._wait

    def go_on(*given: Any) -> KafkaStatus:
        # The topics were read once by now; what follows is found only by reading on.
        connector.process.send_signal(signal.SIGCONT)
        return wait(*given)

    monkeypatch.setattr(verification, "_wait", go_on)
    result = verify(shop, "--wait", "60")
    assert (result["published"], result["not_yet"], result["passed"]) == (4, 0, True)


def test_a_missing_record_behind_a_stopped_pipeline(shop: Shop, verify: Verify) -> None:
    connector = shop.start()
    event = shop.insert(VALID)
    on_topic(shop, event)
    shop.execute("UPDATE outbox SET id = gen_random_uuid()")
    ((updated,),) = shop.execute("SELECT xmin::text::bigint FROM outbox")

    def horizon() -> int:
        shop.execute("SELECT pg_log_standby_snapshot()")
        shop.execute("SELECT pg_logical_emit_message(true, 'verify', 'moves the log')")
        ((found,),) = shop.execute(
            "SELECT catalog_xmin::text::bigint FROM pg_replication_slots WHERE slot_name = %s", shop.slot
        )
        return int(found)

    wait_until(lambda: horizon() > updated, 60, what="the slot to pass the update")
    assert connector.stop() == 0
    ahead = shop.insert(VALID)
    result = verify(shop, code=1)
    assert not result["passed"]
    assert (result["missing"], result["not_yet"]) == (1, 1)
    assert ids(result, "not_yet") == [ahead]


def test_a_stopped_pipeline_on_mongodb(users: Users, verify: Verify) -> None:
    connector = users.start()
    events = [users.insert(seq=number) for number in range(1, 4)]
    on_topic(users, *events)
    assert connector.stop() == 0
    with users.client() as client:
        client[users.database]["outbox"].update_one({"event_id": events[0]}, {"$set": {"event_id": "a hole"}})
    later = users.insert(seq=4)
    result = verify(users, code=1)
    assert not result["passed"]
    assert ids(result, "missing") == ["a hole"]
    assert ids(result, "not_yet") == [later]


def test_events_behind_a_parked_key(shop: Shop, verify: Verify) -> None:
    shop.configure(on_invalid="park")
    shop.start()
    front = shop.insert(INVALID, key="k")
    set_aside(shop, front)
    behind = [shop.insert(VALID, key="k") for _ in range(2)]
    other = shop.insert(VALID, key="other")
    on_topic(shop, other)
    result = verify(shop)
    assert (result["published"], result["set_aside"], result["parked"]) == (1, 1, 2)
    dlq(shop, "discard", "--key", "k", "--why", "a test")
    on_topic(shop, *behind)
    result = verify(shop)
    assert (result["published"], result["discarded"], result["parked"]) == (3, 1, 0)


def test_a_window(shop: Shop, verify: Verify) -> None:
    shop.start()
    old = shop.insert(VALID)
    on_topic(shop, old)
    shop.execute("UPDATE outbox SET id = gen_random_uuid(), created_at = now() - interval '3 days'")
    event = shop.insert(VALID)
    on_topic(shop, event)
    assert verify(shop, code=1)["missing"] == 1
    result = verify(shop, "--from", "2d")
    assert (result["rows"], result["published"]) == (1, 1)
    result = verify(shop, "--to", "2d", code=1)
    assert (result["rows"], result["missing"], result["only_on_kafka"]) == (1, 1, 0)


@pytest.mark.slow
def test_expired_records(shop: Shop, verify: Verify, make_topic: Callable[..., None]) -> None:
    """An emptied partition explains missing old rows of its keys, but no younger ones and no other partition."""
    make_topic(shop.topic, 2, retention_ms=str(7 * DAY_MS))
    shop.start()
    # Both would be in other partitions if there were three.
    places = {key: [partition_of(key.encode(), count) for count in (2, 3)] for key in "abcdefghijklmnopqrstuvwxyz"}
    here, there = (next(key for key in places if places[key] == found) for found in ([0, 2], [1, 2]))
    old = [shop.insert(VALID, key=here) for _ in range(2)]
    young, kept, hole = shop.insert(VALID, key=here), shop.insert(VALID, key=there), shop.insert(VALID, key=there)
    on_topic(shop, *old, young, kept, hole)

    def change(what: str, *rows: str) -> list[str]:
        return [str(row) for (row,) in shop.execute(f"{what} WHERE id = ANY(%s::uuid[]) RETURNING id", list(rows))]

    age, lose = "UPDATE outbox SET created_at = now() - interval '8 days'", "UPDATE outbox SET id = gen_random_uuid()"
    change(age, *old, hole)
    lost = change(lose, hole)
    admin, all_of_it = shop.kafka.admin(), TopicPartition(shop.topic, 0, OFFSET_END)
    admin.delete_records([all_of_it])[all_of_it].result(30)
    for window in ([], ["--from", "9d"]):
        result = verify(shop, *window, code=1)
        assert (result["published"], result["expired"], result["missing"]) == (1, 2, 2)
        assert ids(result, "expired") == sorted(old)
        assert ids(result, "missing") == sorted([young, *lost])
        assert any("retention.ms" in note for note in result["notes"])
    # A later record shows how far it goes; its partition shows that its key has moved.
    change("DELETE FROM outbox", *lost)
    on_topic(shop, shop.insert(VALID, key=here))
    change(age, young, *change(lose, kept))
    admin.create_partitions([NewPartitions(shop.topic, 3)])[shop.topic].result(30)
    wait_until(lambda: len(admin.list_topics(timeout=10).topics[shop.topic].partitions) == 3, what="more partitions")
    for window, published in (["--to", "7d"], 0), ([], 1):
        result = verify(shop, *window)
        assert (result["published"], result["expired"], result["missing"]) == (published, 4, 0)


def test_wrong_arguments_and_settings(shop: Shop, verify: Verify) -> None:
    assert "--from" in verify(shop, "--from", "1h", "--to", "2h", code=2)["what"]
    assert "'soon' is not a time" in verify(shop, "--from", "soon", code=2)["what"]
    shop.settings["outbox"] = {}
    shop.configure()
    assert "cannot be applied" in verify(shop, "--from", "1h", code=2)["what"]
    shop.configure(kafka={"bootstrap": "localhost:1"})
    assert verify(shop, code=3)["error"] == "KafkaUnavailable"
    shop.file.write_text("pipeline: [")
    assert verify(shop, code=2)["error"]
