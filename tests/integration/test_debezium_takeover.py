"""Taking over from Debezium in states that a crash can leave, without Debezium: slot, topics and offset are made here.

`test_debezium_import.py` does the same with a real Debezium.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from helpers.command import Tailrace
from helpers.debezium import postgres_config, write_config
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.testkit.oracle import WriteOutcome, WrittenEvent
from tailrace.testkit.workload.writer import Mix


class AbandonedConnector:
    """What a connector has left: its slot and publication, records on the topic, and an offset."""

    def __init__(self, shop: Shop, make_topic: Any) -> None:
        self.shop = shop
        self.offsets = f"{shop.name}-connect-offsets"
        make_topic(self.offsets, 3, cleanup_policy="compact")
        make_topic(shop.topic, 3)
        shop.execute(f"CREATE PUBLICATION dbz_{shop.name} FOR TABLE outbox")
        shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", shop.slot)
        config = postgres_config(shop.dsn, shop.name, shop.name)
        config |= {"slot.name": shop.slot, "transforms.outbox.route.topic.replacement": shop.topic}
        self.config = write_config(shop.folder / "connector.json", shop.name, config)
        shop.file.unlink()

    def rows(self, *keys: str) -> list[str]:
        """Inserts one row per key in one transaction; returns their ids."""
        shop = self.shop
        writer: Any = shop.writers[0] if shop.writers else shop.writer(mix=Mix(rollback=0, invalid=0), keys=0)
        before = len(writer.written)
        chosen = iter(keys)
        writer._random.choice = lambda _: next(chosen)
        for key in keys:
            writer._seq.setdefault(key, 0)
        writer.transaction(len(keys), rollback=False)
        return [event.id for event in writer.written[before:]]

    def copy(self, *keys: str) -> list[str]:
        """Inserts one row per key by one COPY; returns their ids."""
        events = [WrittenEvent(str(uuid.uuid4()), key, 1, True, WriteOutcome.COMMITTED) for key in keys]
        self.shop.copy(events)
        self.shop.writer(mix=Mix(rollback=0, invalid=0), keys=0).written += events
        return [event.id for event in events]

    def changes(self) -> tuple[int, list[int]]:
        """Returns the id of the first transaction, and the LSN of each inserted row."""
        ((xid, lsns),) = self.shop.execute(
            "SELECT min(xmin::text::bigint), (SELECT array_agg(lsn - '0/0' ORDER BY lsn) FROM "
            "pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s) "
            "WHERE get_byte(data, 0) = ascii('I')) FROM outbox",
            self.shop.slot, f"dbz_{self.shop.name}",
        )  # fmt: skip
        return int(xid), [int(lsn) for lsn in lsns]

    def publish(self, *ids: str) -> None:
        """Writes the records of these rows, as Debezium does."""
        producer = Producer({"bootstrap.servers": self.shop.kafka.bootstrap, "partitioner": "murmur2_random"})
        for each in ids:
            ((key, payload),) = self.shop.execute("SELECT aggregateid, payload::text FROM outbox WHERE id = %s", each)
            producer.produce(self.shop.topic, payload, key, headers=[("id", each.encode())])
        assert producer.flush(30) == 0

    def store_offset(self, *, behind: int = 0, **fields: Any) -> None:
        """Stores an offset at the present end of the log, or at an LSN."""
        ((end,),) = self.shop.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
        lsn = behind or int(end)
        offset = {"lsn": lsn, "lsn_proc": lsn, "lsn_commit": lsn, "messageType": "INSERT", "txId": 1, **fields}
        producer = Producer({"bootstrap.servers": self.shop.kafka.bootstrap})
        key = json.dumps([self.shop.name, {"server": "dbz"}], separators=(",", ":"))
        producer.produce(self.offsets, json.dumps(offset), key)
        assert producer.flush(30) == 0

    @property
    def command(self) -> list[str]:
        given = ["--file", str(self.shop.file), "--bootstrap", self.shop.kafka.bootstrap, "--offsets", self.offsets]
        return ["import", "debezium", str(self.config), *given, "--take-over", "--stopped"]


@pytest.fixture
def left(shop: Shop, make_topic: Any) -> AbandonedConnector:
    return AbandonedConnector(shop, make_topic)


def runs_to_the_end(left: AbandonedConnector) -> None:
    """Starts the pipeline, writes one more event, and asks the oracle."""
    shop = left.shop
    connector = shop.start()
    left.rows("z")
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    assert connector.stop() == 0


def test_events_beyond_the_offset_are_neither_lost_nor_doubled(left: AbandonedConnector, tailrace: Tailrace) -> None:
    left.rows("a")
    left.publish(*[event.id for event in left.shop.writers[0].written])
    left.store_offset()
    one, two, three, four, _ = left.rows("a", "b", "c", "d", "e")
    # Partitions are written independently: of five rows, the second and the fourth have arrived.
    left.publish(two, four)
    found = tailrace(*left.command)["takeover"]
    assert (found["published_beyond_offset"], found["completed"], found["pending"]) == (2, 2, 1)
    assert [each.id for each in left.shop.published()].count(one) == 1
    assert [each.id for each in left.shop.published()].count(three) == 1
    again = tailrace(*left.command, code=2)
    assert "has a stored position already" in again["what"]
    runs_to_the_end(left)


def test_a_hole_before_a_later_event_of_its_key_is_for_a_person(left: AbandonedConnector, tailrace: Tailrace) -> None:
    left.store_offset()
    one, two, _ = left.rows("a", "a", "a")
    left.publish(two)
    refused = tailrace(*left.command, code=2)
    assert refused["error"] == "TakeoverUncertain"
    assert one in refused["what"]
    assert not left.shop.positions()
    found = tailrace(*left.command, "--holes", "skip")["takeover"]
    assert (found["completed"], found["skipped"], found["pending"]) == (0, 1, 1)
    left.shop.start()
    verdict = left.shop.verdict()
    assert set(verdict.missing) <= {one, left.shop.writers[0].written[-1].id}


def test_the_offset_counts_where_topics_no_longer_show_it(left: AbandonedConnector, tailrace: Tailrace) -> None:
    """The last transaction always looks incomplete in the offset; its records may have been deleted since."""
    start = left.shop.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0]
    left.rows("a", "b", "c")
    xid, lsns = left.changes()
    left.store_offset(behind=int(start), lsn_proc=lsns[1], txId=xid)
    found = tailrace(*left.command)["takeover"]
    assert (found["published_beyond_offset"], found["completed"], found["pending"]) == (0, 0, 1)


def test_rows_of_a_copy_share_an_lsn(left: AbandonedConnector, tailrace: Tailrace) -> None:
    """An offset at that LSN says only that the first of them is published."""
    start = left.shop.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0]
    one, two, three = left.copy("a", "b", "c")
    xid, lsns = left.changes()
    assert len(lsns) == 3
    assert len(set(lsns)) == 1
    left.publish(one, two)
    left.store_offset(behind=int(start), lsn_proc=lsns[0], txId=xid)
    found = tailrace(*left.command)["takeover"]
    assert (found["published_beyond_offset"], found["completed"], found["pending"]) == (1, 0, 1)
    runs_to_the_end(left)
    assert [each.id for each in left.shop.published()].count(three) == 1


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(failpoints.BEFORE_PRODUCE, marks=pytest.mark.slow),
        failpoints.AFTER_PRODUCE,
        pytest.param(failpoints.AFTER_COMMIT, marks=pytest.mark.slow),
    ],
)
def test_a_killed_takeover_is_repeated(left: AbandonedConnector, tailrace: Tailrace, kill: str) -> None:
    left.rows("a")
    left.publish(*[event.id for event in left.shop.writers[0].written])
    left.store_offset()
    _, two, _ = left.rows("a", "b", "c")
    left.publish(two)
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", *left.command],
        env={**os.environ, "TAILRACE_KILL": kill}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    committed = kill == failpoints.AFTER_COMMIT
    tailrace(*left.command, code=2 if committed else 0)
    runs_to_the_end(left)


def test_what_cannot_be_taken_over_is_named(left: AbandonedConnector, tailrace: Tailrace) -> None:
    shop, command = left.shop, left.command
    left.store_offset(behind=1)
    assert "behind Debezium's offset" in tailrace(*command, code=2)["what"]
    left.store_offset(snapshot="INITIAL", last_snapshot_record=False)
    assert "snapshot" in tailrace(*command, code=2)["what"]
    topic = command.index("--offsets") + 1
    assert "no topic nowhere" in tailrace(*command[:topic], "nowhere", *command[topic + 1 :], code=3)["what"]
    left.store_offset()
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (shop.slot,))
    refused = tailrace(*command, code=3)
    assert refused["error"] == "SlotMissing"
    assert "--from-table" in refused["remedy"]
    assert not shop.positions()


def test_a_file_that_was_edited_is_kept(left: AbandonedConnector, tailrace: Tailrace) -> None:
    written = ["import", "debezium", str(left.config), "--bootstrap", left.shop.kafka.bootstrap]
    tailrace(*written, "--file", left.shop.file)
    assert left.shop.file.stat().st_mode & 0o077 == 0
    edited = f"{left.shop.file.read_text()}\n# mine\n"
    Path(left.shop.file).write_text(edited)
    assert "exists already" in tailrace(*written, "--file", left.shop.file, code=2)["what"]
    assert left.shop.file.read_text() == edited
