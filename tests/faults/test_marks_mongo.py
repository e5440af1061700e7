"""Row marks in MongoDB: status fields of the documents, never missed, and updates that publish nothing."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from faults.test_mongo_offsets import own_offsets_topic
from helpers import recovery
from helpers import warm_processes as warm
from helpers.command import Tailrace
from helpers.users import Users
from tailrace import failpoints
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError
from tailrace.testkit.stack import wait_until
from tailrace.testkit.workload.writer import Mix
from tailrace.worker.wiring import wire

KILLS = (
    failpoints.MARKS_PENDING,
    failpoints.MARKS_CATCHING_UP,
    failpoints.MARKS_WRITTEN,
    failpoints.MARKS_COMMITTED,
)
"""Every failpoint of marks; the second run catches up with what the first has left."""


@pytest.fixture
def marked(users: Users) -> Users:
    users.configure(marks="rows")
    return users


def documents(users: Users) -> dict[str, dict[str, Any]]:
    with users.client() as client:
        return {str(each["event_id"]): each for each in client[users.database].outbox.find({})}


def all_marked(users: Users, *left_out: str) -> None:
    """Waits until every document is marked as published or failed."""

    def done() -> bool:
        return all(
            each.get("status") in ("published", "failed")
            for event, each in documents(users).items()
            if event not in left_out
        )

    wait_until(done, 60, what=f"the marks; the connector logged:\n{users.connectors[-1].log}")


@pytest.mark.slow
def test_marks_are_complete_after_kills_and_publish_nothing(marked: Users) -> None:
    users = marked
    users.start().stop()
    writer = users.writer(mix=Mix(invalid=0.2))
    for point in KILLS:
        connector = users.start(kill=f"{point}:{1 if point == failpoints.MARKS_CATCHING_UP else 2}")
        while connector.running:
            writer.transaction()
        assert connector.ended() == -9, connector.log
    users.start()
    writer.transaction()
    verdict = users.caught_up()
    assert verdict.ok, verdict
    all_marked(users)
    letters = {seen.id for seen in users.dead_lettered()}
    found = documents(users)
    assert {event for event, each in found.items() if each["status"] == "failed"} == letters
    for event, each in found.items():
        if event in letters:
            assert (each["retry_count"], each["last_error"].partition(":")[0]) == (1, "schema_validation_failed")
            assert "last_error_at" in each
        else:
            assert "published_at" in each
    assert users.verdict().ok


def test_rows_from_before_the_first_start_edits_and_a_redrive(marked: Users) -> None:
    users = marked
    before = users.insert(created_at=None, status="pending")
    users.start()
    bad = users.insert(payload={"user": 1})
    event = users.insert()
    all_marked(users, before)
    assert documents(users)[before]["status"] == "pending"
    with users.client() as client:
        client[users.database].outbox.update_many({}, {"$set": {"note": "edited"}})
    last = users.insert()
    all_marked(users, before)
    assert {seen.id for seen in users.published()} == {event, last}
    schema = users.folder / "schemas" / "UserRegistered" / "1.json"
    schema.write_text("{}")
    done = warm.run("dlq", "redrive", str(users.file), "--all-open", "--yes", "--json", env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    wait_until(lambda: documents(users)[bad]["status"] == "published", 60, what="the mark of the redriven event")


def test_a_first_read_is_marked_when_it_is_complete(marked: Users) -> None:
    users = marked
    users.configure(source={"start": "beginning", "start_where": '{"partition_key": {"$ne": "old"}}'})
    for _ in range(3):
        users.insert(status="pending")
    left_out = users.insert("old", status="pending")
    users.start()
    all_marked(users, left_out)
    assert documents(users)[left_out]["status"] == "pending"
    assert len(users.published()) == 3


def test_a_watermark_is_refused(users: Users) -> None:
    users.configure(marks="watermark")
    with pytest.raises(ConfigError, match="for Postgres"):
        wire(load_pipeline(users.file))


@pytest.mark.slow
def test_commands_that_compare_documents_stay_right(marked: Users, tailrace: Tailrace, tmp_path: Path) -> None:
    """`verify`, `recover` and the archive with documents that were marked since they were published."""
    users = marked
    (tmp_path / "cold").mkdir()
    own_offsets_topic(users)
    users.configure(archive={"url": f"file://{tmp_path / 'cold'}"})
    connector = users.start()
    for number in range(20):
        users.insert(f"u{number % 3}", number + 1, created_at=datetime.now(UTC) - timedelta(days=200))
    recent = users.insert("u1", 21)
    all_marked(users)
    assert connector.stop() == 0
    found = tailrace("verify", users.file)
    assert (found["missing"], found["duplicated"]) == (0, 0), found
    missed = users.insert("u1", 22)
    planned = recovery.plan(users, "--force")
    assert (planned["missed"], planned["undecided"]) == (1, 0), planned
    users.start()
    all_marked(users)
    assert len(users.published()) == 22
    written = tailrace("archive", "write", users.file, "--before", "100 d")
    assert (written["rows"], written["deleted"]) == (20, 20), written
    assert documents(users).keys() == {recent, missed}
    assert len(users.published()) == 22
