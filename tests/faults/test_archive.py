"""Archiving on real servers: no row is lost, none is in two files, none is deleted that is not in a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Message, Producer
from pyarrow import parquet

from helpers import warm_processes as warm
from helpers.command import Output, Tailrace
from helpers.parking import ask, first_letters
from helpers.s3_server import serve
from helpers.service import Connector, Service
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.archive.repository import open_repository
from tailrace.archive.writer import ArchiveRun
from tailrace.config.load import load_pipeline
from tailrace.errors import ArchiveBusy
from tailrace.positions.postgres import LsnPosition, TableRead
from tailrace.replay.archive_context import open_outbox
from tailrace.replay.table_points import from_table, stored_position
from tailrace.state import offsets
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.worker.wiring import wire

VALID = '{"order": "a", "revision": 1, "amount": 1.50, "currency": "EUR"}'
INVALID = '{"order": "a", "revision": 1, "amount": "much", "currency": "EUR"}'
OLD = (
    "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, traceparent, created_at) "
    "SELECT gen_random_uuid(), 'order', 'k' || n %% 7, 'OrderPlaced', %s::jsonb, 'tp-' || n, "
    "now() - interval '200 days' + n * interval '1 second' FROM generate_series(1, %s) n RETURNING id::text"
)


@pytest.fixture(autouse=True)
def alone(shop: Shop) -> None:
    """A separate offsets topic, because archiving reads all positions on it."""
    shop.configure(kafka={"offsets_topic": f"{shop.name}.offsets"})


def old_rows(shop: Shop, count: int, payload: str = VALID) -> list[str]:
    return [str(row[0]) for row in shop.execute(OLD, payload, count)]


def records(service: Service, suffix: str = "") -> dict[str, Message]:
    return {header(each, "id"): each for each in read_all(service.kafka.bootstrap, [service.topic + suffix])}


def arrived(service: Service, events: list[str]) -> None:
    wait_until(lambda: records(service).keys() >= set(events), 120, what="the records")


def settled(shop: Shop) -> None:
    """Waits until the pipeline has stored a position behind everything written; an idle one would take longer."""
    arrived(shop, [shop.insert(VALID, key="fresh")])


def same(copy: Message, original: Message) -> bool:
    """Returns whether the record of a replay equals its original, except for what a replay adds."""
    added = ("tailrace.replay", "tailrace.shadow")
    headers = [each for each in copy.headers() or [] if each[0] not in added]
    return (copy.value(), copy.key(), headers) == (original.value(), original.key(), original.headers())


def archived(listed: Output, folder: Path) -> list[str]:
    """Returns the ids in all files of the archive, read as Parquet."""
    files = [folder / entry["file"] for entry in listed["files"]]
    return sorted(each for file in files for each in parquet.read_table(file)["id"].to_pylist())


@pytest.mark.slow
def test_killed_at_every_step_and_replayed(shop: Shop, tailrace: Tailrace, tmp_path: Path) -> None:
    place = tmp_path / "cold"
    place.mkdir()
    shop.configure(archive={"url": f"file://{place}"}, limits={"batch_records": 400})
    connector = shop.start()
    old, new = old_rows(shop, 1200), [shop.insert(VALID) for _ in range(3)]
    arrived(shop, [*old, *new])
    write = ("archive", "write", shop.file)
    looked = tailrace(*write, "--dry-run")
    assert (looked["rows"], looked["held"], looked["files"]) == (1200, 0, [])
    assert tailrace("archive", "list", shop.file)["files"] == []
    assert tailrace("archive", "check", shop.file)["clean"]
    assert not list(place.iterdir())
    # A disk that is not mounted: no archive is started in its place.
    place.rename(away := tmp_path / "away")
    refused = tailrace(*write, code=2)
    assert (str(place) in refused["what"], f"mkdir -p {place}" in refused["remedy"]) == (True, True)
    away.rename(place)
    listed = None
    for kill, files, orphans, left in (
        (failpoints.ARCHIVE_WRITTEN, 0, 1, 1203),
        (failpoints.ARCHIVE_READ_BACK, 0, 2, 1203),
        (failpoints.ARCHIVE_LISTED, 1, 2, 1203),
        (failpoints.ARCHIVE_DELETED, 1, 2, 203),
    ):
        warm.killed(*write, at=kill)
        listed = tailrace("archive", "list", shop.file)
        assert (len(listed["files"]), len(listed["orphans"])) == (files, orphans), kill
        assert len(shop.in_outbox()) == left, kill
    settled(shop)
    result = tailrace(*write)
    assert (result["rows"], result["finished"], result["changed"]) == (0, 200, 0)
    assert shop.in_outbox() >= set(new)
    assert not shop.in_outbox() & set(old)
    assert listed == tailrace("archive", "list", shop.file)
    assert archived(listed, place / shop.name) == sorted(old)
    assert tailrace("archive", "check", shop.file)["rows"] == 1200
    # The metadata of the file, and the original position of each row.
    found = parquet.read_table(place / shop.name / listed["files"][0]["file"])
    assert json.loads(found.schema.metadata[b"tailrace"])["columns"][0] == ["id", 2950]
    assert found["payload"].to_pylist()[0] == '{"order": "a", "amount": 1.50, "currency": "EUR", "revision": 1}'
    originals = records(shop)
    assert found["tailrace_position"].to_pylist()[0] == header(originals[found["id"].to_pylist()[0]], "position")
    # Neither log nor table has them: the archive is used, and gives exactly what was published before.
    planned = tailrace("replay", "plan", shop.file, "--from", "201d", "--shadow", ".shadow")
    assert (planned["source"], planned["figures"]["events"], planned["figures"]["passes"]) == ("archive", 1200, 1200)
    assert any("--from-table" in note for note in planned["notes"])
    warm.killed("replay", "apply", planned["file"], at=f"{failpoints.AFTER_COMMIT}:2")
    result = tailrace("replay", "apply", planned["file"])
    assert result["continued"]
    assert 0 < result["published"] < 1200
    copies = read_all(shop.kafka.bootstrap, [shop.topic + ".shadow"])
    assert sorted(header(each, "id") for each in copies) == sorted(old)
    assert all(same(each, originals[header(each, "id")]) for each in copies)
    result = tailrace("replay", "diff", planned["file"])
    assert (result["clean"], result["same"]) == (True, 1200)
    assert tailrace("replay", "apply", planned["file"])["published"] == 0
    # Single events are found there as well, and the pipeline was not affected.
    settled(shop)
    single = tailrace("replay", "plan", shop.file, "--id", old[7])
    assert (single["source"], single["figures"]["events"]) == ("archive", 1)
    assert "nor all of them in the archive" in tailrace("replay", "plan", shop.file, "--id", "nobody", code=2)["what"]
    assert connector.running
    assert tailrace("verify", shop.file)["clean"]
    # An edited entry, with or without its digest.
    entry = place / shop.name / "manifest/00000001.json"
    written = entry.read_text()
    edited = {**json.loads(written), "created": {"first_ms": 0, "last_ms": 1}}
    entry.write_text(json.dumps(edited))
    assert "edited" in tailrace("archive", "check", shop.file, code=3)["what"]
    del edited["digest"]
    entry.write_text(json.dumps(edited))
    assert "`created`" in tailrace("archive", "check", shop.file, code=1)["flaws"][0]["flaw"]
    entry.write_text(written)
    # A file that does not match its entry: nothing is published, by an existing plan or a new one.
    damaged = place / shop.name / listed["files"][0]["file"]
    parquet.write_table(found, damaged)  # the same rows in other bytes, so only the digest differs
    again = tailrace("replay", "plan", shop.file, "--from", "201d", "--from-archive", code=3)
    assert (again["error"], "archive check" in again["remedy"]) == ("ArchiveDamaged", True)
    assert tailrace("replay", "apply", single["file"], code=3)["error"] == "ArchiveDamaged"
    assert tailrace("archive", "check", shop.file, code=1)["flaws"][0]["rows"] == 1200
    damaged.unlink()
    assert tailrace("replay", "apply", single["file"], code=3)["error"] == "ArchiveDamaged"
    assert len(read_all(shop.kafka.bootstrap, [shop.topic])) == 1205


def test_changed_and_pinned_rows_stay_in_the_table(shop: Shop, tailrace: Tailrace) -> None:
    """Open dead letters, events that wait behind them, changed rows, and rows that were kept."""
    with serve() as bucket:
        shop.configure(archive=bucket.settings, on_invalid="park")
        shop.start()
        old = old_rows(shop, 6)
        (bad,) = old_rows(shop, 1, INVALID)  # of the key k1: what comes behind it waits
        behind = shop.insert(VALID, key="k1")
        shop.execute("UPDATE outbox SET created_at = now() - interval '199 days' WHERE id = %s::uuid", behind)
        arrived(shop, old)
        # A row that cannot be decoded, and is changed after its dead letter was written, which has no id.
        nameless = shop.insert(VALID, kind="", key="k9")
        wait_until(lambda: len(shop.dead_lettered()) == 2, 60, what="the letters")
        shop.execute("UPDATE outbox SET created_at = now() - interval '199 days' WHERE id = %s::uuid", nameless)
        write = ("archive", "write", shop.file, "--before", "190d")
        wait_until(lambda: read_all(shop.kafka.bootstrap, [f"{shop.name}.parked"]), 60, what="what waits")
        settled(shop)
        result = tailrace(*write, "--keep")
        assert (result["rows"], result["deleted"], result["held"]) == (6, 0, 3)
        every = {*old, bad, behind, nameless}
        assert shop.in_outbox() >= every
        # The table has them all, so it is used and not the archive.
        assert tailrace("replay", "plan", shop.file, "--from", "201d", "--shadow", ".s")["source"] == "table"
        # Changed since, in one way or another: it stays in every run, and is not archived again.
        shop.execute("UPDATE outbox SET traceparent = 'other' WHERE id = %s::uuid", old[0])
        shop.execute("ALTER TABLE outbox ADD COLUMN note text")
        shop.execute("UPDATE outbox SET note = 'of later' WHERE id = %s::uuid", old[1])
        settled(shop)
        result = tailrace(*write)
        assert (result["rows"], result["finished"], result["changed"], result["held"]) == (0, 4, 2, 3)
        assert shop.in_outbox() & every == {old[0], old[1], bad, behind, nameless}
        settled(shop)
        result = tailrace(*write)
        assert (result["rows"], result["finished"], result["changed"], result["archived_before"]) == (0, 0, 2, 2)
        # Once the dead letter is resolved, nothing waits any more: both may be archived. The other one is still open.
        ask(shop, first_letters(shop)[0], "discard")
        arrived(shop, [behind])
        settled(shop)
        result = tailrace(*write)
        assert (result["rows"], result["deleted"], result["held"]) == (2, 2, 1)
        assert shop.in_outbox() & every == {old[0], old[1], nameless}
        listed = tailrace("archive", "list", shop.file)
        assert [entry["rows"] for entry in listed["files"]] == [6, 2]
        assert tailrace("archive", "check", shop.file)["clean"]
        # A replay publishes it from there, the only copy.
        settled(shop)
        single = tailrace("replay", "plan", shop.file, "--id", old[3])
        assert single["source"] == "archive"
        tailrace("replay", "apply", single["file"])
        copies = [each for each in read_all(shop.kafka.bootstrap, [shop.topic]) if header(each, "id") == old[3]]
        assert [header(each, "tailrace.replay") for each in copies] == ["", single["id"]]
        assert same(copies[1], copies[0])
        # A missing entry in between is a loss, which must be noticed.
        first = next(name for name in bucket.objects if name.endswith("manifest/00000001.json"))
        bucket.objects[first.replace("1.json", "4.json")] = bucket.objects[first]
        assert "no entry 3" in tailrace("archive", "list", shop.file, code=3)["what"]


@pytest.mark.slow
def test_two_archivers_and_refused_runs(shop: Shop, tailrace: Tailrace, tmp_path: Path) -> None:
    shop.configure(source={"on_change": "halt"})
    write = ("archive", "write", shop.file)
    assert "has no archive" in tailrace(*write, code=2)["what"]
    (tmp_path / "cold").mkdir()
    shop.configure(archive={"url": f"file://{tmp_path / 'cold'}"})
    assert "never started" in tailrace(*write, code=2)["what"]
    assert "is not a time" in tailrace(*write, "--before", "oldest", code=2)["what"]
    connector = shop.start()
    old = old_rows(shop, 1100)
    arrived(shop, old)
    # A role without the DELETE privilege.
    shop.execute(f"CREATE ROLE {shop.name} LOGIN REPLICATION PASSWORD 'only-for-tests'")
    shop.execute(f"GRANT SELECT ON outbox TO {shop.name}")
    given = shop.settings["source"]["postgres"]
    shop.configure(
        source={"postgres": psycopg.conninfo.make_conninfo(given, user=shop.name, password="only-for-tests")}
    )
    refused = tailrace(*write, code=3)
    assert (refused["error"], "GRANT DELETE" in refused["remedy"]) == ("AccessRefused", True), refused
    looked = tailrace(*write, "--dry-run")
    assert (looked["rows"], any("GRANT DELETE" in note for note in looked["notes"])) == (1100, True), looked
    assert tailrace(*write, "--dry-run", "--keep")["rows"] == 1100
    shop.configure(source={"postgres": given})
    # Settings that were copied with the pipeline's name: its position belongs to another table.
    shop.execute("CREATE TABLE other (LIKE outbox INCLUDING ALL)")
    shop.execute("INSERT INTO other SELECT * FROM outbox")
    for mistaken in ({"table": "public.other"}, {"slot": "another"}):
        as_it_was = dict(shop.settings["source"])
        shop.configure(source=mistaken)
        refused = tailrace(*write, code=3)
        assert (refused["error"], "its own name" in refused["remedy"]) == ("WrongLog", True), refused
        shop.settings["source"] = as_it_was
    shop.configure()
    assert shop.execute("SELECT count(*) FROM other") == [(1100,)]
    assert tailrace("archive", "list", shop.file)["files"] == []
    # Of two archivers with the same list, the second adds and deletes nothing.
    wiring = wire(load_pipeline(shop.file))
    stored = stored_position(wiring)
    start, _ = from_table(wiring, stored, ())  # type: ignore[arg-type]
    repositories = [open_repository(wiring.settings) for _ in range(2)]
    outbox = open_outbox(wiring)

    def archiving(number: int) -> ArchiveRun:
        return ArchiveRun(
            repositories[number],
            outbox,
            set(),
            lambda _: ("", 0),
            start=start,
            before_ms=stored.at_ms - 1,
            keep=number == 0,
        )

    assert archiving(0).run().rows == 1100
    with pytest.raises(ArchiveBusy):
        archiving(1).run()
    outbox.close()
    assert len(shop.in_outbox()) == 1100
    assert tailrace("archive", "list", shop.file)["orphans"] == []
    # A replay with a stricter schema dead-letters one of them: it stays until that is resolved.
    schema = shop.folder / "schemas" / "OrderPlaced" / "1.json"
    kept = schema.read_text()
    schema.write_text(json.dumps({"type": "object", "required": ["other"]}))
    failing = tailrace("replay", "plan", shop.file, "--id", old[0])
    assert tailrace("replay", "apply", failing["file"])["dead_letters"] == 1
    schema.write_text(kept)
    # Several processes: every row is in exactly one file, and then deleted.
    more = old_rows(shop, 300)
    arrived(shop, more)
    several = [
        warm.Process([*warm.TAILRACE, *map(str, write)], output=tmp_path / f"write-{number}.log") for number in range(3)
    ]
    codes = [each.wait(120) for each in several]
    assert 0 in codes
    assert set(codes) <= {0, 3}
    settled(shop)
    tailrace(*write)
    assert shop.in_outbox() & {*old, *more} == {old[0]}
    (letter,) = tailrace("dlq", "list", shop.file)["letters"]
    tailrace("dlq", "discard", shop.file, letter["id"], "--why", "a test", "--yes")
    settled(shop)
    assert tailrace(*write)["finished"] == 1
    assert not shop.in_outbox() & {*old, *more}
    listed = tailrace("archive", "list", shop.file)
    assert archived(listed, tmp_path / "cold" / shop.name) == sorted([*old, *more])
    settled(shop)
    assert connector.running
    # A publication that sends deletes to a pipeline that halts at them.
    shop.execute(f"ALTER PUBLICATION {shop.slot} SET (publish = 'insert, delete')")
    assert "sends deletes" in tailrace(*write, code=2)["what"]


@pytest.mark.slow
def test_rows_that_others_still_need_stay(shop: Shop, tailrace: Tailrace, tmp_path: Path) -> None:
    """Another pipeline of the same outbox, rows that would be deleted by a foreign key, and a table that inherits."""
    (tmp_path / "cold").mkdir()
    shop.configure(archive={"url": f"file://{tmp_path / 'cold'}"})
    shop.start()
    other = f"{shop.name}_b"
    file = shop.folder / f"{other}.yaml"
    kafka = {**shop.settings["kafka"], "dead_letter_topic": f"{shop.letters}-b"}
    file.write_text(json.dumps({**shop.settings, "pipeline": other, "kafka": kafka}))
    second = Connector(file, shop.folder / "second.log")
    shop.connectors.append(second)
    second.says('"running"', 120)
    assert second.stop() == 0
    old = old_rows(shop, 6)
    arrived(shop, old)
    settled(shop)
    write = ("archive", "write", shop.file)
    # It lags: the log would deliver them, but if that is lost, only the table is left.
    result = tailrace(*write)
    assert (result["rows"], [note for note in result["notes"] if other in note] != []) == (0, True)
    # During its first read it publishes only what it finds in the table.
    here = stored_position(wire(load_pipeline(shop.file)))
    assert isinstance(here, LsnPosition)
    reading = replace(here, table_read=TableRead("5:5:"))
    options = replace(wire(load_pipeline(file)).kafka, pipeline=other)
    stored = offsets.record(options, reading)
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    producer.produce(stored.topic, stored.value, stored.key)
    assert producer.flush(30) == 0
    refused = tailrace(*write, code=2)
    assert other in refused["what"]
    assert f"--ignore-pipeline {other}" in refused["remedy"]
    gone = (*write, "--ignore-pipeline", other)
    # A pipeline whose position cannot be parsed.
    odd = f"{shop.name}_c"
    producer.produce(stored.topic, b'{"source": "postgres"}', odd.encode())
    assert producer.flush(30) == 0
    refused = tailrace(*gone, code=2)
    assert odd in refused["what"]
    assert f"--ignore-pipeline {odd}" in refused["remedy"]
    gone = (*gone, "--ignore-pipeline", odd)
    # Rows of other tables are in no file.
    shop.execute("CREATE TABLE attempts (event uuid CONSTRAINT hangs REFERENCES outbox ON DELETE CASCADE)")
    assert "attempts" in tailrace(*gone, code=2)["what"]
    shop.execute("DROP TABLE attempts")
    # Stopped meanwhile, because a running pipeline stops when a table inherits from its outbox.
    assert shop.connectors[0].stop() == 0
    shop.execute("CREATE TABLE below () INHERITS (outbox)")
    assert "below inherits" in tailrace(*gone, code=3)["what"]
    shop.execute("DROP TABLE below")
    shop.start()
    assert shop.in_outbox() >= set(old)
    assert tailrace(*gone)["deleted"] == 6
    # The same number of other rows of that time are in the table now.
    (entry,) = tailrace("archive", "list", shop.file)["files"]
    late = old_rows(shop, 6)
    shop.execute("UPDATE outbox SET created_at = to_timestamp(%s / 1000.0) WHERE id = ANY (%s::uuid[])",
                 entry["created"]["first_ms"] + 1, late)  # fmt: skip
    arrived(shop, late)
    settled(shop)
    planned = tailrace("replay", "plan", shop.file, "--from", "201d", "--shadow", ".shadow")
    assert (planned["source"], planned["figures"]["events"]) == ("archive", 6)
    # With --from-table an event is not searched elsewhere.
    assert "not in the table" in tailrace("replay", "plan", shop.file, "--id", old[0], "--from-table", code=2)["what"]
    assert tailrace("replay", "plan", shop.file, "--id", old[0])["source"] == "archive"
