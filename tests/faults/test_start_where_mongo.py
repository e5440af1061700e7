"""`source.start_where` on MongoDB: a collection with documents that a polling publisher has published."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from faults.test_start_where import KILLS, arrives, killed, published
from helpers import recovery as recovering
from helpers.command import Tailrace
from helpers.users import Users
from tailrace import failpoints
from tailrace.errors import StartWhereInvalid
from tailrace.sources.mongo.start_where import require_valid
from tailrace.testkit.workload.users import outbox_document
from tailrace.testkit.workload.writer import WorkloadEvent

PENDING = {"status": {"$nin": ["published"]}}
LONG_AGO = datetime.now(UTC) - timedelta(days=100)
Pairs = list[tuple[str, str]]


def fill(users: Users, documents: int, *, one_in: int) -> Pairs:
    """Inserts documents of a polling publisher, of which one in `one_in` is pending; returns those."""
    made = []
    for number in range(1, documents + 1):
        event = WorkloadEvent(str(uuid.uuid4()), f"k{number % 7}", number, valid=True)
        document = outbox_document(event, topic=users.topic, at=LONG_AGO + timedelta(milliseconds=number))
        made.append({**document, "status": "published" if number % one_in else "pending"})
    with users.client() as client:
        client[users.database].outbox.insert_many(made)
    users.configure(source={"start": "beginning", "start_where": PENDING}, limits={"batch_records": 10})
    return [(each["entity_id"], each["event_id"]) for each in made if each["status"] == "pending"]


def insert(users: Users, *, status: str = "pending") -> tuple[str, str]:
    """Inserts a document while the first read is under way; the stream sends it with any status."""
    return "k1", users.insert("k1", status=status)


def update(users: Users, events: Pairs, **fields: object) -> None:
    with users.client() as client:
        wanted = {"event_id": {"$in": [event for _, event in events]}}
        client[users.database].outbox.update_many(wanted, {"$set": fields})


@pytest.mark.slow
def test_exactly_the_pending_documents_are_published(users: Users, tailrace: Tailrace) -> None:
    users.configure(kafka={"offsets_topic": f"{users.name}.offsets"})
    pending = fill(users, 600, one_in=10)
    check = {each["name"]: each for each in tailrace("check", users.file)["checks"]}["start_where"]
    assert "publishes 60 documents and leaves out 540" in check["found"]
    killed(users, KILLS[0])
    done = published(users)
    assert 0 < len(done) < 40
    later = [insert(users), insert(users, status="published")]
    update(users, done, status="published")
    update(users, pending[-20:], retry_count=3)
    # A person marks two pending documents as done: they are not published.
    update(users, pending[-2:], status="published")
    killed(users, KILLS[2])
    later.append(insert(users))
    users.configure(source={"start_where": {"status": "pending"}})
    users.start(wait=False).failed("StartWhereChanged", exit_code=2)
    users.configure(source={"start_where": PENDING})
    connector = users.start()
    later.append(insert(users))
    arrives(users, [*pending[:-2], *later])
    assert connector.stop() == 0
    del users.settings["source"]["start_where"]
    users.configure()
    connector = users.start()
    later.append(insert(users))
    arrives(users, [*pending[:-2], *later])
    found = tailrace("verify", users.file)
    assert (found["published"], found["before_start"], found["missing"]) == (58 + 5, 542, 0), found
    assert connector.stop() == 0
    later.append(insert(users))
    planned = recovering.plan(users, "--force")
    assert (planned["missed"], planned["undecided"], planned["left_out"]["left_out"]) == (1, 0, 542), planned


@pytest.mark.parametrize(
    ("where", "why"),
    [('{"a": {"$in": 1}}', "array"), ('{"a": {"$mod": [0, 1]}}', "divisor"), ('{"$where": "1"}', "$where")],
)
def test_a_filter_is_checked_before_anything_runs(users: Users, where: str, why: str) -> None:
    with users.client() as client:
        with pytest.raises(StartWhereInvalid) as caught:
            require_valid(client, users.database, ("outbox",), where)
        assert why in caught.value.why.lower()
        require_valid(client, users.database, ("outbox",), '{"status": "pending"}')


@pytest.mark.slow
def test_a_hundred_thousand_published_documents(users: Users, tailrace: Tailrace) -> None:
    """The first read is killed at every step while a service writes, and its documents are marked."""
    pending = fill(users, 101_000, one_in=101)
    assert len(pending) == 1000
    users.configure(limits={"batch_records": 50})
    later = []
    for number, kill in enumerate((failpoints.TABLE_ROWS_READ, *KILLS)):
        killed(users, kill)
        later += [insert(users, status="published" if n == 1 else "pending") for n in range(5)]
        update(users, published(users), status="published")
        update(users, [pending[-1 - number]], retry_count=number)
    assert users.positions()[-1].collection_read is not None
    users.start()
    later += [insert(users) for _ in range(5)]
    arrives(users, [*pending, *later])
    found = tailrace("verify", users.file)
    assert (found["published"], found["before_start"], found["missing"]) == (1030, 100_000, 0), found
