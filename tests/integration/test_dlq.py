"""`tailrace dlq` on real servers: lists, shows, redrives and discards dead letters, each once."""

from __future__ import annotations

import io
import json
import signal
import stat
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import ConfigResource, ResourceType

from helpers import warm_processes as warm
from helpers.shop import SCHEMA, Shop
from tailrace.cli import main
from tailrace.dlq import redrive
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
INVALID = '{"order": "a", "revision": 1, "amount": "much", "currency": "EUR"}'

JsonLines = list[dict[str, Any]]
Dlq = Callable[..., JsonLines]


@pytest.fixture
def dlq(shop: Shop, capsys: pytest.CaptureFixture[str]) -> Dlq:
    """Runs a command with --json; returns an object for each line. Payloads are text, so they may be invalid JSON."""
    shop.execute("ALTER TABLE outbox ALTER COLUMN payload TYPE text")

    def run(command: str, *arguments: str, code: int = 0) -> JsonLines:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(["dlq", command, str(shop.file), *arguments, "--json"])
        printed = capsys.readouterr()
        assert caught.value.code == code, printed
        return [json.loads(line) for line in (printed.out + printed.err).splitlines()]

    return run


def letters(dlq: Dlq, *arguments: str) -> JsonLines:
    found: JsonLines = dlq("list", *arguments)[0]["letters"]
    return found


def wait_for_letters(shop: Shop, *events: str) -> None:
    """Waits for the dead letters of these events."""
    wait_until(lambda: {seen.id for seen in shop.dead_lettered()} >= set(events), 60, what="the dead letters")


def allow_any_amount(shop: Shop) -> None:
    """Changes the schema so that invalid events become valid."""
    properties: dict[str, Any] = {**SCHEMA["properties"], "amount": {}}  # type: ignore[dict-item]
    for kind in ("OrderPlaced", "OrderChanged"):
        (shop.folder / "schemas" / kind / "1.json").write_text(json.dumps({**SCHEMA, "properties": properties}))


def published(shop: Shop) -> dict[str, Message]:
    found = read_all(shop.kafka.bootstrap, [shop.topic])
    by_id = {header(message, "id"): message for message in found}
    assert len(by_id) == len(found), "an event was published twice"
    return by_id


def headers_of(message: Message) -> dict[str, str]:
    return {name: header(message, name) for name, _ in message.headers() or []}


def test_listing_without_dead_letters_creates_no_topic(shop: Shop, dlq: Dlq) -> None:
    assert dlq("list") == [{"letters": [], "matching": 0}]
    assert dlq("redrive", "--all-open", "--yes") == [{"summary": {}}]
    assert not {shop.letters, f"{shop.letters}.marks"} & set(shop.kafka.admin().list_topics(timeout=10).topics)


def test_dead_letters_are_listed_by_filters(shop: Shop, dlq: Dlq, capsys: pytest.CaptureFixture[str]) -> None:
    shop.start()
    first = shop.insert(INVALID, key="a-1")
    second = shop.insert(INVALID, kind="OrderChanged", key="a-2")
    third = shop.insert(VALID, kind="NobodyKnows", key="b-1")
    last = shop.insert('{"order": "\\u0000"}', key="b-2")
    wait_for_letters(shop, first, second, third, last)
    found = letters(dlq)
    assert [each["event_id"] for each in found] == [first, second, third, last]
    assert {each["state"] for each in found} == {"open"}
    assert found[0]["topic"] == shop.topic
    assert "$.amount: expected number" in found[0]["explanation"]
    assert "Correct the service" in found[0]["remedy"]

    def ids(*arguments: str) -> list[str]:
        return [each["event_id"] for each in letters(dlq, *arguments)]

    assert ids("--reason", "poison_message") == [last]
    assert ids("--type", "Order*", "--key", "a-*") == [first, second]
    assert ids("--key", "b-1", "--key", "b-2") == [third, last]
    assert ids("--since", "1h") == [first, second, third, last]
    assert ids("--until", "1h") == []
    assert ids("--since", found[1]["when"], "--until", found[3]["when"]) == [second, third]
    assert ids("--since", "2999-01-01T00:00:00Z") == []
    assert ids("--limit", "2") == [third, last]
    assert dlq("list", "--limit", "1")[0]["matching"] == 4
    with pytest.raises(SystemExit):
        main(["dlq", "list", str(shop.file), "--limit", "3"])
    text = capsys.readouterr().out
    assert "The newest 3 of 4" in text
    assert "schema_validation_failed" in text
    assert first not in text


def test_a_dead_letter_is_shown_with_what_the_schema_expects(
    shop: Shop, dlq: Dlq, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.start()
    event = shop.insert('{"order": "a", "revision": 0, "amount": "much", "currency": "EUR"}', key="order-1")
    wait_for_letters(shop, event)
    (letter,) = letters(dlq)
    (shown,) = dlq("show", letter["id"])
    assert (shown["event_id"], shown["key"], shown["payload"]["amount"]) == (event, "order-1", "much")
    assert shown["headers"]["tailrace.aggregate"] == "order"
    assert shown["now"]["passes"] is False
    fields = {each["field"]: each for each in shown["now"]["fields"]}
    assert set(fields) == {"$.amount", "$.revision"}
    assert fields["$.amount"]["expected"] == "number"
    assert fields["$.amount"]["found"] == fields["$.amount"]["payload"] == '"much"'
    assert fields["$.revision"]["expected"] == "at least 1"
    with pytest.raises(SystemExit):
        main(["dlq", "show", str(shop.file), letter["id"].removeprefix("0-")])
    text = capsys.readouterr().out
    assert "It would still fail" in text
    assert '  "amount": "much",\n' in text
    (shop.folder / "schemas" / "OrderPlaced" / "1.json").write_text("{}")
    assert dlq("show", letter["id"])[0]["now"] == {"passes": True, "topic": shop.topic}


def test_an_id_without_a_dead_letter(shop: Shop, dlq: Dlq) -> None:
    shop.start()
    event = shop.insert(INVALID)
    wait_for_letters(shop, event)
    (error,) = dlq("show", "0-4711", code=2)
    assert "0-4711" in error["what"]
    assert "0-0 to" in error["why"]
    (error,) = dlq("show", "0-1", code=2)  # the mark of the transaction that wrote the letter
    assert (error["error"], "there is no dead letter 0-1" in error["what"]) == ("DeadLetterMissing", True)
    (error,) = dlq("redrive", "nonsense", "--yes", code=2)
    assert "nonsense" in error["what"]


def test_dead_letters_are_redriven_while_the_pipeline_runs(shop: Shop, dlq: Dlq) -> None:
    connector = shop.start()
    events = [shop.insert(INVALID, key=f"k-{number}") for number in range(5)]
    wait_for_letters(shop, *events)
    before = {each["event_id"]: each for each in letters(dlq)}
    again = dlq("redrive", "--all-open", "--yes", code=1)  # the schema has not changed
    assert [each["outcome"] for each in again[:-1]] == ["failed"] * 5
    assert "$.amount" in again[0]["explanation"]
    assert published(shop) == {}
    assert len(letters(dlq)) == 5
    allow_any_amount(shop)
    tried = dlq("redrive", "--all-open", "--dry-run")
    assert tried[-1] == {"summary": {"would pass": 5}}
    assert published(shop) == {}
    done = dlq("redrive", "--all-open", "--yes", "--why", "fixed")
    assert done[-1] == {"summary": {"redriven": 5}}
    found = published(shop)
    assert set(found) == set(events)
    for event, message in found.items():
        letter = before[event]
        assert message.value() == INVALID.encode()
        assert message.key() == letter["key"].encode()
        reported = headers_of(message)
        assert reported["position"] == letter["position"]
        assert (reported["type"], reported["tailrace.redriven"]) == ("OrderPlaced", letter["id"])
        assert message.timestamp()[1] == int(reported["timestamp"])
        assert "created_at" in reported
        assert not [name for name in reported if name.startswith(("__connect", "kafka_dlt", "tailrace.reason"))]
    assert letters(dlq) == []
    marks = [each["mark"] for each in letters(dlq, "--all")]
    assert {(mark["action"], mark["why"], mark["topic"], mark["edited"]) for mark in marks} == {
        ("redriven", "fixed", shop.topic, False)
    }
    assert all("@" in mark["by"] for mark in marks)
    assert dlq("redrive", "--all-open", "--yes") == [{"summary": {}}]
    (skipped, summary) = dlq("redrive", before[events[0]]["id"], "--yes")
    assert (skipped["outcome"], skipped["mark"]["why"], summary) == ("skipped", "fixed", {"summary": {"skipped": 1}})
    assert connector.running
    later = shop.insert(VALID)
    wait_until(lambda: later in published(shop), 60, what="the pipeline to go on")
    assert '"Fenced"' not in connector.log


def test_a_redriven_record_equals_that_of_the_pipeline(shop: Shop, dlq: Dlq) -> None:
    """They differ in one header only."""
    shop.execute("ALTER TABLE outbox ADD COLUMN tenant text DEFAULT 'eu-1', ADD COLUMN schema_version text DEFAULT '1'")
    shop.configure(outbox={"columns": {"timestamp": "created_at", "version": "schema_version"}})
    shop.configure(format={"cloudevents": "binary", "source": "/shop"})
    shop.start()
    bad = shop.insert(INVALID)
    wait_for_letters(shop, bad)
    good = shop.insert(VALID)
    wait_until(lambda: good in published(shop), 60, what="the good event")
    allow_any_amount(shop)
    dlq("redrive", "--all-open", "--yes")
    found = published(shop)
    ours, own = headers_of(found[bad]), headers_of(found[good])
    assert set(ours) - set(own) == {"tailrace.redriven"}
    assert list(ours)[:-1] == list(own)
    assert ours["ce_id"] == bad
    assert ours["tenant"] == "eu-1"


def test_an_unreadable_row_is_corrected_and_redriven(shop: Shop, dlq: Dlq, tmp_path: Path) -> None:
    shop.start()
    event = shop.insert(VALID, kind="", key="row-1")
    wait_until(lambda: len(shop.dead_lettered()) == 1, 60, what="the dead letter")
    (letter,) = letters(dlq)
    (failed, _) = dlq("redrive", letter["id"], "--yes", code=1)
    assert "'type'" in failed["explanation"]
    row = dlq("show", letter["id"])[0]["payload"]
    assert row["id"] == event
    file = tmp_path / "row.json"
    file.write_text(json.dumps({**row, "type": "OrderPlaced"}))
    dlq("redrive", letter["id"], "--payload", str(file), "--yes")
    message = published(shop)[event]
    assert (message.key(), message.value()) == (b"row-1", VALID.encode())
    reported = headers_of(message)
    assert (reported["type"], reported["tailrace.edited"], reported["position"]) == (
        "OrderPlaced",
        "true",
        letter["position"],
    )
    assert letters(dlq) == []


def test_a_payload_is_edited_and_redriven(
    shop: Shop, dlq: Dlq, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shop.start()
    event, other = shop.insert(INVALID), shop.insert(INVALID)
    wait_for_letters(shop, event, other)
    first, second = letters(dlq)
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i \'s/"much"/1.10/\' "$2"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("EDITOR", "true")
    with pytest.raises(SystemExit) as caught:
        main(["dlq", "redrive", str(shop.file), first["id"], "--edit", "--yes"])
    assert caught.value.code == 1
    monkeypatch.setenv("EDITOR", f"{editor} -w")
    assert "one dead letter" in dlq("redrive", "--all-open", "--edit", "--yes", code=2)[0]["what"]
    dlq("redrive", first["id"], "--edit", "--yes")
    message = published(shop)[event]
    assert message.value() == INVALID.replace('"much"', "1.10").encode()
    assert headers_of(message)["tailrace.edited"] == "true"
    (marked,) = [each for each in letters(dlq, "--all") if each["id"] == first["id"]]
    assert marked["mark"]["edited"] is True
    assert [each["id"] for each in letters(dlq)] == [second["id"]]


def test_a_payload_that_was_not_stored_must_be_given(shop: Shop, dlq: Dlq, tmp_path: Path) -> None:
    shop.configure(dead_letters={"payload": "hash"})
    shop.start()
    event = shop.insert(INVALID)
    wait_for_letters(shop, event)
    (letter,) = letters(dlq)
    allow_any_amount(shop)
    (failed, _) = dlq("redrive", letter["id"], "--yes", code=1)
    assert "does not contain the payload" in failed["explanation"]
    assert "--payload FILE" in failed["remedy"]
    file = tmp_path / "payload.json"
    stored = shop.execute("SELECT payload::text FROM outbox WHERE id = %s", event)[0][0]
    file.write_text(stored)
    dlq("redrive", letter["id"], "--payload", str(file), "--yes")
    message = published(shop)[event]
    assert message.value() == stored.encode()
    assert "tailrace.edited" not in headers_of(message), "it is the very payload that the event had"


def test_discarding_checks_the_given_key(shop: Shop, dlq: Dlq) -> None:
    shop.start()
    events = [shop.insert(INVALID, key=key) for key in ("a", "b", "c")]
    wait_for_letters(shop, *events)
    first, second, third = letters(dlq)
    (error,) = dlq("discard", first["id"], "--key", "b", "--why", "test", "--yes", code=2)
    assert "has the key 'a', not 'b'" in error["what"]
    (error,) = dlq("discard", "--why", "test", "--yes", code=2)
    assert "no dead letters are selected" in error["what"]
    (error,) = dlq("discard", first["id"], "--why", "test", code=2)
    assert "--yes" in error["remedy"]
    assert len(letters(dlq)) == 3
    dlq("discard", first["id"], "--key", "a", "--why", "test data", "--yes")
    assert [each["id"] for each in letters(dlq)] == [second["id"], third["id"]]
    dlq("discard", "--key", "b", "--why", "test data", "--yes")
    assert [each["id"] for each in letters(dlq)] == [third["id"]]
    allow_any_amount(shop)
    reported = dlq("redrive", first["id"], third["id"], "--yes")
    assert [each.get("outcome") for each in reported] == ["skipped", "redriven", None]
    assert set(published(shop)) == {events[2]}
    states = {each["id"]: each["state"] for each in letters(dlq, "--all")}
    assert states == {first["id"]: "discarded", second["id"]: "discarded", third["id"]: "redriven"}


class Terminal(io.StringIO):
    """Answers a prompt."""

    def isatty(self) -> bool:
        return True


def test_a_redrive_asks_for_confirmation(
    shop: Shop, dlq: Dlq, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.start()
    event = shop.insert(INVALID)
    wait_for_letters(shop, event)
    allow_any_amount(shop)
    for answer, code, left in (("n", 1, 1), ("y", 0, 0)):
        monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
        with pytest.raises(SystemExit) as caught:
            main(["dlq", "redrive", str(shop.file), "--all-open"])
        assert caught.value.code == code
        asked = capsys.readouterr().err
        assert "Publish 1 dead letter (1 schema_validation_failed)?" in asked
        assert "Newer events of the same keys may have been published since" in asked
        assert len(letters(dlq)) == left
    assert set(published(shop)) == {event}


def test_a_redrive_that_waits_for_confirmation_skips_what_another_resolved(
    shop: Shop, dlq: Dlq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were open when it asked."""
    shop.start()
    event = shop.insert(INVALID)
    wait_for_letters(shop, event)
    allow_any_amount(shop)

    class Slow(Terminal):
        def readline(self, *arguments: Any) -> str:
            ran = warm.run("dlq", "redrive", str(shop.file), "--all-open", "--yes")
            assert ran.returncode == 0, ran.stderr
            return super().readline(*arguments)

    monkeypatch.setattr(sys, "stdin", Slow("y\n"))
    with pytest.raises(SystemExit) as caught:
        main(["dlq", "redrive", str(shop.file), "--all-open"])
    assert caught.value.code == 0
    assert set(published(shop)) == {event}  # which also refuses an event that is there twice


def test_more_dead_letters_than_fit_in_a_batch(shop: Shop, dlq: Dlq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "BATCH_LETTERS", 7)
    shop.start()
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        "SELECT gen_random_uuid(), 'order', n::text, 'OrderPlaced', %s FROM generate_series(1, 40) n",
        INVALID,
    )
    wait_until(lambda: len(shop.dead_lettered()) == 40, 60, what="the dead letters")
    allow_any_amount(shop)
    assert dlq("redrive", "--type", "OrderPlaced", "--yes")[-1] == {"summary": {"redriven": 40}}
    assert len(published(shop)) == 40
    assert dlq("list") == [{"letters": [], "matching": 0}]


def test_a_missing_topic_is_created_or_rejected_as_the_pipeline_does(shop: Shop, dlq: Dlq) -> None:
    shop.start()
    event = shop.insert(INVALID)
    wait_for_letters(shop, event)
    (shop.folder / "topics" / "orders.yaml").unlink()
    allow_any_amount(shop)
    shop.configure(topics={"template": f"{shop.name}.new.{{aggregate}}", "create": False})
    (error,) = dlq("redrive", "--all-open", "--yes", code=3)
    assert (error["error"], f"{shop.name}.new.order" in error["what"]) == ("TopicMissing", True)
    assert len(letters(dlq)) == 1
    shop.configure(topics={"create": True, "partitions": 2})
    dlq("redrive", "--all-open", "--yes")
    (message,) = read_all(shop.kafka.bootstrap, [f"{shop.name}.new.order"])
    assert header(message, "id") == event
    assert len(shop.kafka.admin().list_topics(timeout=10).topics[f"{shop.name}.new.order"].partitions) == 2


def test_dead_letters_are_kept_for_the_configured_days(shop: Shop, dlq: Dlq) -> None:
    shop.configure(dead_letters={"retention_days": 30})
    shop.start()
    wait_for_letters(shop, shop.insert(INVALID))
    resource = ConfigResource(ResourceType.TOPIC, shop.letters)
    admin = shop.kafka.admin()
    config = admin.describe_configs([resource])[resource].result(timeout=30)
    days = timedelta(milliseconds=int(config["retention.ms"].value)).days
    assert (days, config["cleanup.policy"].value) == (30, "delete")


def test_a_resolutions_topic_that_could_lose_records_is_rejected(
    shop: Shop, dlq: Dlq, make_topic: Callable[..., None]
) -> None:
    shop.start()
    event = shop.insert(INVALID)
    wait_for_letters(shop, event)
    make_topic(f"{shop.letters}.marks", cleanup_policy="delete")
    (error,) = dlq("discard", "--type", "*", "--why", "test", "--yes", code=3)
    assert "cleanup.policy=delete" in error["what"]
    assert len(letters(dlq)) == 1


def test_an_old_resolution_does_not_hide_a_dead_letter_on_a_recreated_topic(shop: Shop, dlq: Dlq) -> None:
    connector = shop.start()
    event = shop.insert(INVALID)
    wait_for_letters(shop, event)
    dlq("discard", "0-0", "--why", "test", "--yes")
    assert letters(dlq) == []
    connector.stop()
    admin = shop.kafka.admin()
    admin.delete_topics([shop.letters])[shop.letters].result(20)
    wait_until(lambda: shop.letters not in admin.list_topics(timeout=10).topics, 60, what="the end of the topic")
    shop.start()
    later = shop.insert(INVALID)
    wait_for_letters(shop, later)
    assert [(each["id"], each["event_id"]) for each in letters(dlq)] == [("0-0", later)]
    assert letters(dlq, "--all")[0]["state"] == "open"


def test_dead_letters_of_another_pipeline_on_the_same_topic_are_ignored(shop: Shop, dlq: Dlq) -> None:
    shop.start().stop()
    stranger = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    stranger.produce(
        shop.letters, b"{}", b"k", headers={"tailrace.pipeline": "another", "tailrace.payload": "original"}
    )
    stranger.flush(10)
    assert letters(dlq) == []
    assert "there is no dead letter" in dlq("redrive", "0-0", "--yes", code=2)[0]["what"]


def test_watch_prints_dead_letters_and_resolutions(shop: Shop, dlq: Dlq) -> None:
    shop.start()
    early = shop.insert(INVALID)
    wait_for_letters(shop, early)
    out, err = shop.folder / "watch.out", shop.folder / "watch.err"
    process = warm.Process([*warm.TAILRACE, "dlq", "watch", str(shop.file), "--json"], output=out, errors=err)
    try:
        wait_until(lambda: "watching" in err.read_text() or process.poll() is not None, 60, what="watch")
        event = shop.insert(INVALID, key="w")
        wait_for_letters(shop, event)
        dlq("discard", "--key", "w", "--why", "seen", "--yes")
        wait_until(lambda: len(out.read_text().splitlines()) >= 2, 60, what=f"two lines: {err.read_text()}")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    letter, mark = (json.loads(line) for line in out.read_text().splitlines())
    assert (letter["letter"]["event_id"], mark["mark"]["id"]) == (event, letter["letter"]["id"])
    assert (mark["mark"]["action"], mark["mark"]["why"]) == ("discarded", "seen")


def test_status_counts_open_dead_letters_by_reason(
    shop: Shop, dlq: Dlq, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.start()
    events = [shop.insert(INVALID), shop.insert(INVALID), shop.insert('{"order": "\\u0000"}')]
    wait_for_letters(shop, *events)

    def status(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            main(["status", str(shop.file), *arguments])
        return capsys.readouterr().out

    counted = {"open": 3, "more": False, "by_reason": {"schema_validation_failed": 2, "poison_message": 1}}
    assert json.loads(status("--json"))["dead_letters"] == counted
    assert "3 open: 2 schema_validation_failed, 1 poison_message" in status()
    monkeypatch.setattr("tailrace.check.health.COUNTED_DEAD_LETTERS", 2)
    assert "more than 2 open" in status()
    monkeypatch.setattr("tailrace.check.health.COUNTING_SECONDS", 0.0)
    assert "too many to count quickly" in status()
    monkeypatch.undo()
    dlq("discard", "--type", "*", "--why", "test", "--yes")
    assert "none open" in status()
