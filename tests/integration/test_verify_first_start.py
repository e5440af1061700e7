"""Rows from before the first start with `start: now` are recognised, not missing, and never published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.command import Tailrace
from helpers.shop import Shop
from helpers.users import Users
from tailrace.config.load import load_pipeline
from tailrace.positions.postgres import parse_lsn
from tailrace.replay.table_points import stored_position
from tailrace.testkit.stack import wait_until
from tailrace.verify.outbox_rows import Rows
from tailrace.worker.wiring import wire

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
OLD = (
    "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at) "
    "VALUES (gen_random_uuid(), 'order', 'k', 'OrderPlaced', %s, now() - interval '200 days') RETURNING id::text"
)


def on_topic(service: Shop | Users, *events: str) -> None:
    wait_until(lambda: {seen.id for seen in service.published()} >= set(events), 60, what="the records")


@pytest.mark.slow
@pytest.mark.parametrize("start", ["now", "beginning"])
def test_on_postgres(
    shop: Shop, tailrace: Tailrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    shop.configure(
        source={"start": start},
        archive={"url": f"file://{tmp_path / 'archive'}"},
        kafka={"offsets_topic": f"{shop.name}.offsets"},
    )
    (tmp_path / "archive").mkdir()
    early = [str(shop.execute(OLD, VALID)[0][0]) for _ in range(2)]
    published = [] if start == "now" else early
    tailrace("check", shop.file)
    connector = shop.start()
    late = str(shop.execute(OLD, VALID)[0][0])
    on_topic(shop, late, *published)
    left_out = len(early) - len(published)

    def verified(missing: int = 0) -> tuple[int, int, int]:
        found = tailrace("verify", shop.file, code=1 if missing else 0)
        return found["published"], found["before_start"], found["missing"]

    assert verified() == (1 + len(published), left_out, 0)
    # In every position stored from then on, and regardless of old transaction ids.
    assert connector.stop() == 0
    connector = shop.start()
    another = shop.insert(VALID)
    on_topic(shop, another)
    shop.execute("VACUUM (FREEZE) outbox")
    assert verified() == (2 + len(published), left_out, 0)
    shop.caught_up()
    plan = tailrace("replay", "plan", shop.file, "--from", "oldest", "--from-table", "--output", tmp_path / "plan.json")
    assert plan["figures"]["events"] == 2 + len(published)
    assert any("first start" in note for note in plan["notes"]) == bool(left_out)
    written = tailrace("archive", "write", shop.file, "--before", "190d", "--dry-run")
    assert written["rows"] == 1 + len(published)
    shop.execute("UPDATE outbox SET id = gen_random_uuid() WHERE id = %s", another)
    read = Rows.read

    def moves_on(*given: Any) -> None:
        """Lets the pipeline pass the end of the log after the outbox was read."""
        read(*given)
        ((end,),) = shop.execute("SELECT pg_logical_emit_message(true, 'verify', 'moves the log')::text")
        wiring = wire(load_pipeline(shop.file))
        wait_until(lambda: int(stored_position(wiring).progress[1]) > parse_lsn(end), 60, what="the position to move")

    monkeypatch.setattr(Rows, "read", moves_on)
    assert verified(missing=1) == (1 + len(published), left_out, 1)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["now", "beginning"])
def test_on_mongodb(users: Users, tailrace: Tailrace, start: str) -> None:
    users.configure(source={"start": start})
    early = users.insert(seq=1)
    tailrace("check", users.file)
    users.start()
    late = users.insert(seq=2)
    on_topic(users, late, *([] if start == "now" else [early]))
    found = tailrace("verify", users.file)
    assert (found["before_start"], found["published"]) == ((1, 1) if start == "now" else (0, 2))
    with users.client() as client:
        client[users.database]["outbox"].update_one({"event_id": late}, {"$set": {"event_id": "a hole"}})
    found = tailrace("verify", users.file, code=1)
    assert (found["before_start"], found["missing"]) == (1 if start == "now" else 0, 1)
