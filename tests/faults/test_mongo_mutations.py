"""The oracle detects broken rules on MongoDB, too: each mutation breaks one rule of the source."""

from __future__ import annotations

import pytest

from helpers.mutations import program
from helpers.users import Users
from tailrace import failpoints
from tailrace.testkit.stack import wait_until

pytestmark = pytest.mark.slow

# The token behind a batch is used before its changes are read: a crash loses the rest of the batch.
TOKEN_EARLY = """
from tailrace.sources.mongo.source import MongoSource
take = MongoSource._next_batch
def early(self):
    found = take(self)
    if self._token is not None:
        self._following.idle(self._token)
    return found
MongoSource._next_batch = early
from tailrace.sources.mongo.changes import ChangeFollower
feed = ChangeFollower.feed_all
def careless(self, raw):
    token, self._token = self._token, {"_data": ""}
    feed(self, raw)
    self._token = max(token, self._token, key=lambda each: each["_data"])
ChangeFollower.feed_all = careless
"""
# Only the time is stored: a transaction that was cut is read from its beginning again.
TIME_ONLY = """
from tailrace.sources.mongo import source
from tailrace.sources.mongo.changes import token_time
from bson import Timestamp
begin = source.MongoSource._follow
def by_time(self, start):
    if "startAfter" in start:
        time = token_time(start["startAfter"])
        start = {"startAtOperationTime": Timestamp(*time.pair)}
    return begin(self, start)
source.MongoSource._follow = by_time
from tailrace.sources.mongo.changes import ChangeFollower
feed = ChangeFollower.feed_all
def forgetful(self, raw):
    self._token = {"_data": ""}
    feed(self, raw)
ChangeFollower.feed_all = forgetful
"""
# Documents inserted after the stream's beginning are also read from the collection.
NOTHING_LATER = """
from tailrace.temporary_table import DiskSet
DiskSet.__contains__ = lambda self, key: False
"""


@pytest.mark.parametrize(
    ("change", "flaw"), [("", ""), (TOKEN_EARLY, "missing"), (TIME_ONLY, "duplicated")], ids=["none", "early", "time"]
)
def test_killed_inside_a_transaction(users: Users, change: str, flaw: str) -> None:
    users.configure(limits={"batch_records": 5})
    users.start().stop()
    writer = users.writer()
    for _ in range(10):
        writer.transaction(events=7, rollback=False)
    run = program(users.folder, change)
    assert users.start(kill=f"{failpoints.AFTER_COMMIT}:4", program=run).ended() == -9
    users.start(program=run)
    last = users.insert("last")
    users.connectors[-1].says('"running"')
    wait_for(users, last)
    verdict = users.verdict()
    assert bool(verdict.missing) == (flaw == "missing"), verdict
    assert bool(verdict.duplicated) == (flaw == "duplicated"), verdict


@pytest.mark.parametrize("change", ["", NOTHING_LATER], ids=["none", "nothing later"])
def test_killed_while_reading_the_collection(users: Users, change: str) -> None:
    users.configure(source={"start": "beginning"}, limits={"batch_records": 5})
    for number in range(20):
        users.insert(f"k{number}")
    run = program(users.folder, change)
    assert users.start(kill=f"{failpoints.TABLE_ROWS_READ}:2", program=run).ended() == -9
    users.insert("in between")
    users.start(program=run)
    wait_for(users, users.insert("last"))
    ids = [seen.id for seen in users.published()]
    assert len(set(ids)) == 22
    assert (len(ids) > len(set(ids))) == bool(change)


def wait_for(users: Users, event: str) -> None:
    wait_until(lambda: event in {seen.id for seen in users.published()}, 60, what=users.connectors[-1].log)
