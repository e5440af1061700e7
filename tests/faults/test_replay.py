"""Replays on real servers: each selected event exactly once more, marked, whenever the command is killed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from helpers import warm_processes as warm
from helpers.command import Output, Tailrace
from helpers.service import Service
from helpers.shop import Shop
from helpers.users import Users
from tailrace import failpoints
from tailrace.cli import main
from tailrace.kafka.topics import topic_config
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

INVALID = '{"order": "a", "revision": 1, "amount": "much", "currency": "EUR"}'
VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
KILLS = (
    failpoints.BEFORE_PRODUCE,
    f"{failpoints.AFTER_PRODUCE}:2",
    failpoints.AFTER_COMMIT,
)


def records(service: Service, suffix: str = "") -> list[Message]:
    return read_all(service.kafka.bootstrap, [service.topic + suffix])


def firsts(service: Service) -> dict[str, Message]:
    return {header(each, "id"): each for each in records(service) if not header(each, "tailrace.replay")}


def again(service: Service, planned: Output, suffix: str = "") -> list[str]:
    """Returns the ids that this replay published."""
    found = [each for each in records(service, suffix) if header(each, "tailrace.replay") == planned["id"]]
    return sorted(header(each, "id") for each in found)


def arrived(service: Service, *events: str) -> None:
    wait_until(lambda: firsts(service).keys() >= set(events), 60, what="the records")


def places(service: Service) -> dict[str, set[str]]:
    """Returns the positions in an event's records: one, if a replay has the original position."""
    found: dict[str, set[str]] = {}
    for each in records(service):
        found.setdefault(header(each, "id"), set()).add(header(each, "position"))
    return found


def set_policy(shop: Shop, policy: str) -> None:
    """Sets whether the topic is compacted."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, shop.topic, incremental_configs=[entry])
    admin = shop.kafka.admin()
    admin.incremental_alter_configs([resource])[resource].result(20)
    wait_until(lambda: topic_config(admin, shop.topic)["cleanup.policy"] == policy, 20, what="the new policy")


def test_from_the_log_next_to_a_running_pipeline(shop: Shop, tailrace: Tailrace) -> None:
    shop.configure(source={"replay_window": "1 h"}, limits={"batch_records": 4})
    connector = shop.start()
    placed = [shop.insert(VALID, key=f"k{number % 3}") for number in range(14)]
    pair = [str(uuid.uuid4()) for _ in range(2)]
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        "SELECT unnest(%s::uuid[]), 'order', 'pair', 'OrderChanged', %s", pair, VALID
    )  # fmt: skip
    changed = [shop.insert(VALID, kind="OrderChanged", key="c") for _ in range(3)]
    arrived(shop, *placed, *changed, *pair)
    planned = tailrace("replay", "plan", shop.file, "--from", "oldest", "--type", "OrderP*")
    figures = planned["figures"]
    assert planned["source"] == "log"
    assert (figures["events"], figures["rows"], figures["passes"]) == (14, 19, 14)
    assert (figures["by_type"], figures["by_topic"]) == ({"OrderPlaced": 14}, {shop.topic: 14})
    assert not again(shop, planned)
    for first, last in (pair, reversed(pair)):
        refused = tailrace("replay", "plan", shop.file, "--from", f"event:{first}", "--to", f"event:{last}", code=2)
        assert "in the same transaction" in refused["what"]
    later = shop.insert(VALID)
    for kill in KILLS:
        warm.killed("replay", "apply", planned["file"], at=kill)
    # Meanwhile other events can be replayed from the same log, also one by one.
    single = tailrace("replay", "plan", shop.file, "--from", f"event:{placed[4]}", "--id", placed[6])
    assert tailrace("replay", "apply", single["file"])["published"] == 1
    result = tailrace("replay", "apply", planned["file"])
    assert result["continued"]
    assert 0 < result["published"] < 14
    assert again(shop, planned) == sorted(placed)
    assert again(shop, single) == [placed[6]]
    assert tailrace("replay", "apply", planned["file"])["published"] == 0
    assert again(shop, planned) == sorted(placed)
    arrived(shop, later)
    assert all(len(each) == 1 for each in places(shop).values())
    assert connector.running
    result = tailrace("verify", shop.file)
    assert result["clean"]
    assert result["published_again"] == 15


@pytest.mark.slow
def test_from_the_table_and_into_a_shadow(
    shop: Shop, tailrace: Tailrace, capsys: pytest.CaptureFixture[str], make_topic: Callable[..., None]
) -> None:
    shop.configure(on_invalid="park")
    shop.start()
    old = [shop.insert(VALID, key="old") for _ in range(3)]
    shop.execute("UPDATE outbox SET created_at = now() - interval '3 days'")
    new = [shop.insert(VALID, key="new", kind="OrderChanged") for _ in range(2)]
    arrived(shop, *old, *new)
    # Without a window the log has nothing, but the table has.
    planned = tailrace("replay", "plan", shop.file, "--from", "4d", "--to", "2d")
    assert planned["source"] == "table"
    assert planned["figures"]["by_type"] == {"OrderPlaced": 3}
    warm.killed("replay", "apply", planned["file"], at=failpoints.TABLE_ROWS_READ)
    warm.killed("replay", "apply", planned["file"], at=failpoints.AFTER_COMMIT)
    tailrace("replay", "apply", planned["file"])
    assert again(shop, planned) == sorted(old)
    assert all(len(each) == 1 for each in places(shop).values())
    by_id = tailrace("replay", "plan", shop.file, "--id", new[1])
    tailrace("replay", "apply", by_id["file"])
    assert again(shop, by_id) == [new[1]]
    # What a plan has checked may change before it is applied.
    late = [tailrace("replay", "plan", shop.file, "--id", new[0], *more) for more in ((), ("--shadow", ".late"))]
    set_policy(shop, "compact")
    make_topic(f"{shop.topic}.late")
    other = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    other.produce(f"{shop.topic}.late", b"somebody else's")
    assert other.flush(20) == 0
    before = len(records(shop))
    for each, word in zip(late, ("compacted", "exists already"), strict=True):
        assert word in tailrace("replay", "apply", each["file"], code=2)["what"]
    assert len(records(shop)) == before
    set_policy(shop, "delete")
    # An event that passed once fails today: it becomes a dead letter of the replay, in addition to its old record.
    schema = shop.folder / "schemas" / "OrderChanged" / "1.json"
    kept = schema.read_text()
    schema.write_text(json.dumps({"type": "object", "required": ["other"]}))
    failing = tailrace("replay", "plan", shop.file, "--from", "oldest", "--from-table", "--key", "new")
    assert failing["figures"]["fails"] == {"schema_validation_failed": 2}
    result = tailrace("replay", "apply", failing["file"])
    assert (result["published"], result["dead_letters"]) == (0, 2)
    letters = read_all(shop.kafka.bootstrap, [shop.letters])
    assert [header(each, "tailrace.replay") for each in letters] == [failing["id"]] * 2
    # The same into shadow topics: nothing is on the original ones, and the differences are reported.
    shadow = tailrace("replay", "plan", shop.file, "--from", "oldest", "--from-table", "--shadow", ".strict")
    before = len(records(shop)), len(read_all(shop.kafka.bootstrap, [shop.letters]))
    result = tailrace("replay", "apply", shadow["file"])
    assert (result["published"], result["dead_letters"]) == (3, 2)
    assert (len(records(shop)), len(read_all(shop.kafka.bootstrap, [shop.letters]))) == before
    assert again(shop, shadow, ".strict") == sorted(old)
    assert {each.partition() for each in records(shop, ".strict")} == {firsts(shop)[old[0]].partition()}
    result = tailrace("replay", "diff", shadow["file"], code=1)
    assert (result["same"], result["set_aside"], result["events"]) == (3, 2, 5)
    assert {each["id"] for each in result["examples"]["set_aside"]} == set(new)
    schema.write_text(kept)
    assert tailrace("verify", shop.file)["clean"]
    # Nothing may overtake a parked key.
    shop.insert(INVALID, key="new")
    wait_until(lambda: len(shop.dead_lettered()) == 3, 60, what="the letter in front")
    everything = ("replay", "plan", shop.file, "--from", "oldest", "--from-table")
    assert "parked" in tailrace(*everything, code=2)["what"]
    assert "exists already" in tailrace(*everything, "--shadow", ".strict", code=2)["what"]
    with pytest.raises(SystemExit):
        main([*map(str, everything), "--shadow", ".free"])
    text = capsys.readouterr().out
    assert "5 pass today, 1 fail" in text
    assert "shadow topics ending in .free" in text


@pytest.mark.slow
def test_on_mongodb(users: Users, tailrace: Tailrace) -> None:
    users.configure(limits={"batch_records": 2})
    connector = users.start()
    events = [users.insert(f"u{number % 2}", number + 1) for number in range(7)]
    arrived(users, *events)
    begin = header(firsts(users)[events[1]], "position").partition(":")[0]
    planned = tailrace("replay", "plan", users.file, "--from", begin, "--key", "u1")
    assert planned["source"] == "log"
    assert planned["figures"]["events"] == 3
    later = users.insert("u1", 8)
    warm.killed("replay", "apply", planned["file"], at=failpoints.AFTER_COMMIT)
    tailrace("replay", "apply", planned["file"])
    assert again(users, planned) == sorted(events[1::2])
    arrived(users, later)
    # The collection; the plan does not contain anything inserted later.
    from_table = tailrace("replay", "plan", users.file, "--from", "1h", "--from-table")
    assert (from_table["source"], from_table["figures"]["events"]) == ("table", 8)
    last = users.insert("u0", 9)
    arrived(users, last)
    warm.killed("replay", "apply", from_table["file"], at=failpoints.AFTER_COMMIT)
    tailrace("replay", "apply", from_table["file"])
    assert again(users, from_table) == sorted([*events, later])
    assert all(len(each) == 1 for each in places(users).values())
    assert connector.running
    shadow = tailrace("replay", "plan", users.file, "--from", begin, "--shadow", ".shadow")
    tailrace("replay", "apply", shadow["file"])
    result = tailrace("replay", "diff", shadow["file"])
    assert (result["same"], result["events"]) == (8, 8)
    result = tailrace("verify", users.file)
    assert (result["clean"], result["published_again"]) == (True, 11)


@pytest.mark.slow
def test_in_place_and_what_is_refused(shop: Shop, tailrace: Tailrace) -> None:
    def refused(*arguments: object, code: int = 2) -> str:
        result = tailrace("replay", *arguments, code=code)
        assert result["remedy"], result
        return str(result["what"])

    plan = ("plan", shop.file)
    assert "never started" in refused(*plan, "--from", "oldest")
    shop.configure(source={"replay_window": "1 h"})
    connector = shop.start()
    events = [shop.insert(VALID, key="k") for _ in range(3)]
    arrived(shop, *events)
    assert "is not a point" in refused(*plan, "--from", "soonish")
    assert "in the future" in refused(*plan, "--from", "FFFF/0")
    assert "in the future" in refused(*plan, "--from", "2999-01-01")
    assert "not before" in refused(*plan, "--from", "1h", "--to", "2h")
    assert "not a point in the log" in refused(*plan, "--from", "1773403200.7")
    assert "--from is missing" in refused(*plan)
    assert "not in the table: nobody" in refused(*plan, "--id", "nobody", "--id", events[0])
    assert "cannot be combined" in refused(*plan, "--from", "oldest", "--in-place", "--type", "OrderPlaced")
    assert "cannot be the end of a topic's name" in refused(*plan, "--from", "oldest", "--shadow", " x")
    assert not list(shop.folder.glob("*.replay-*"))
    planned = tailrace("replay", "plan", shop.file, "--from", f"event:{events[1]}", "--in-place")
    assert planned["figures"]["events"] == 2
    file = shop.folder / planned["file"]
    assert "is RUNNING" in refused("apply", file)
    assert connector.stop() == 0
    other = shop.folder / "other.yaml"
    other.write_text(json.dumps({**shop.settings, "pipeline": "other"}))
    assert "belongs to the pipeline" in refused("apply", file, "--settings", other)
    same = tailrace("replay", "plan", shop.file, "--from", "oldest")
    edited = shop.folder / "edited.json"
    edited.write_text((shop.folder / same["file"]).read_text().replace('"same"', '"shadow"'))
    assert "was changed" in refused("apply", edited)
    assert "cannot be read" in refused("apply", shop.folder / "none.json")
    edited.write_text("{")
    assert "not JSON" in refused("apply", edited)
    assert "has no shadow" in refused("diff", shop.folder / same["file"])
    elsewhere = {**shop.settings, "source": {**shop.settings["source"], "postgres": shop.postgres.dsn("postgres")}}
    other.write_text(json.dumps(elsewhere))
    assert "belongs to database" in refused("apply", shop.folder / same["file"], "--settings", other, code=3)
    copied = {**shop.settings, "source": {**shop.settings["source"], "table": "public.payments"}}
    other.write_text(json.dumps(copied))
    assert "belongs to table public.outbox" in refused("plan", other, "--from", "oldest", "--from-table", code=3)
    assert len(records(shop)) == 3
    # A replay never publishes what the pipeline has not published yet.
    ahead = shop.insert(VALID)
    lagging = tailrace("replay", "plan", shop.file, "--from", "oldest", "--from-table")
    assert lagging["figures"]["events"] <= 3
    assert any("has not caught up" in note for note in lagging["notes"])
    assert f"not in the table: {ahead}" in refused(*plan, "--id", ahead)
    assert tailrace("replay", "apply", file)["done"]
    assert tailrace("replay", "apply", file)["done"]
    shop.start()
    wait_until(lambda: again(shop, planned) == sorted(events[1:]), 60, what="what comes again")
    assert tailrace("verify", shop.file)["clean"]


def test_up_to_the_middle_of_a_large_transaction(shop: Shop, tailrace: Tailrace) -> None:
    """The pipeline is inside it: a replay ends exactly at that row."""
    shop.configure(source={"replay_window": "1 GiB"}, limits={"batch_records": 200})
    connector = shop.start()
    arrived(shop, shop.insert(VALID))
    connector.kill()
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        "SELECT gen_random_uuid(), 'order', 'k', 'OrderPlaced', %s FROM generate_series(1, 3500)",
        VALID,
    )
    shop.start(kill=f"{failpoints.AFTER_COMMIT}:2").ended()
    stored = shop.positions()[-1]
    assert stored.cut is not None
    published = sorted(firsts(shop))
    assert stored.cut.rows < len(published) + 1 < 3500
    planned = tailrace("replay", "plan", shop.file, "--from", "oldest")
    assert planned["figures"]["events"] == len(published)
    assert tailrace("replay", "apply", planned["file"])["published"] == len(published)
    assert again(shop, planned) == published
    shop.start()
    wait_until(lambda: len(firsts(shop)) == 3501, 120, what="the rest of it")
    assert tailrace("verify", shop.file)["clean"]


def test_a_slot_that_was_moved_ahead_proves_nothing(shop: Shop, tailrace: Tailrace) -> None:
    """The slot has passed rows that the pipeline has not: a replay from the table must not publish them first."""
    connector = shop.start()
    arrived(shop, shop.insert(VALID))
    assert connector.stop() == 0
    missed = shop.insert(VALID)
    for _ in range(3):
        # Its `catalog_xmin` advances with each running-transactions record.
        shop.execute("SELECT pg_log_standby_snapshot()")
        shop.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", shop.slot)
    refused = tailrace("replay", "plan", shop.file, "--id", missed, code=2)
    assert "not known" in refused["what"] or "not in the table" in refused["what"], refused
    assert not any(each.name.endswith(".json") for each in shop.folder.iterdir())
