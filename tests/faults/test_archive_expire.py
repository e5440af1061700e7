"""Expiring an archive: killed in between, with a replay in progress, and twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from helpers import warm_processes as warm
from helpers.command import Output, Tailrace
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

VALID = '{"order": "a", "revision": 1, "amount": 1.50, "currency": "EUR"}'
YEAR_MS = 365 * 86_400_000


@pytest.fixture
def archived(shop: Shop, tailrace: Tailrace, tmp_path: Path) -> Shop:
    """A shop whose archive has a file of each of four years, ten rows in each."""
    (tmp_path / "cold").mkdir()
    shop.configure(
        kafka={"offsets_topic": f"{shop.name}.offsets"},
        archive={"url": f"file://{tmp_path / 'cold'}"},
        limits={"batch_records": 5},
    )
    shop.start()
    for years in (5, 4, 2, 1):
        ids = {
            str(row[0])
            for row in shop.execute(
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at) "
                "SELECT gen_random_uuid(), 'order', 'k' || n, 'OrderPlaced', %s::jsonb, now() - %s * interval '1 year' "
                "FROM generate_series(1, 10) n RETURNING id::text",
                VALID,
                years,
            )
        }
        fresh = shop.insert(VALID)
        wait_until(
            lambda wanted=ids | {fresh}: (
                {header(each, "id") for each in read_all(shop.kafka.bootstrap, [shop.topic])} >= wanted
            ),  # type: ignore[misc]
            60,
            what="the records",
        )
        assert tailrace("archive", "write", shop.file)["rows"] == 10
    return shop


def listed(shop: Shop, tailrace: Tailrace) -> tuple[list[int], int]:
    found: Output = tailrace("archive", "list", shop.file)
    return [entry["number"] for entry in found["files"]], len(found["orphans"])


def test_old_files_expire_unless_a_replay_needs_them(archived: Shop, tailrace: Tailrace) -> None:
    shop, expire = archived, ("archive", "expire", archived.file, "--after", "3y")
    planned = tailrace(*expire)
    assert ([entry["number"] for entry in planned["files"]], planned["rows"], planned["dry_run"]) == ([1, 2], 20, True)
    assert listed(shop, tailrace) == ([1, 2, 3, 4], 0)
    assert abs(planned["before_ms"] - time.time() * 1000 + 3 * YEAR_MS) < 600_000
    assert "not an age" in tailrace("archive", "expire", shop.file, "--after", "soon", code=2)["what"]
    # A replay that was killed in the second file.
    plan = tailrace("replay", "plan", shop.file, "--from-archive", "--from", "2000-01-01", "--shadow", ".shadow")
    warm.killed("replay", "apply", plan["file"], at=f"{failpoints.AFTER_COMMIT}:3")
    planned = tailrace(*expire, "--apply")
    assert [entry["number"] for entry in planned["files"]] in ([], [1])
    assert any(f"--ignore-replay {plan['id']}" in note for note in planned["notes"])
    assert tailrace("replay", "apply", plan["file"])["continued"]
    assert len(read_all(shop.kafka.bootstrap, [shop.topic + ".shadow"])) == 40
    # It is done, and nobody needs them any more.
    warm.killed(*expire, "--apply", at=failpoints.EXPIRE_UNLISTED)
    numbers, orphans = listed(shop, tailrace)
    assert (numbers[-2:], orphans) == ([3, 4], 1)
    assert tailrace("archive", "check", shop.file)["clean"]
    tailrace(*expire, "--apply")
    tailrace(*expire, "--apply")
    assert listed(shop, tailrace) == ([3, 4], 0)
    # The newest file stays, and the archive goes on.
    planned = tailrace("archive", "expire", shop.file, "--after", "0d", "--apply")
    assert ([entry["number"] for entry in planned["files"]], "newest file" in planned["notes"][0]) == ([3], True)
    assert listed(shop, tailrace) == ([4], 0)
    refused = tailrace("replay", "apply", plan["file"])
    assert refused["published"] == 0
