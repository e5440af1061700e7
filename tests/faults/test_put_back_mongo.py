"""A MongoDB server restored from a copy of its files: what is written since is published, for any kind of token."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.recovery import apply, plan
from helpers.users import Users, close_users, open_users
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, wait_until


@pytest.fixture
def own(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Users]:
    with MongoServer(choice=ServerChoice.LOCAL) as server:
        users = open_users(server, kafka, tmp_path)
        yield users
        close_users(users)


def write(users: Users, documents: int) -> None:
    for number in range(documents):
        users.insert(f"k{number}")


def all_published(users: Users) -> None:
    wait_until(lambda: users.in_outbox() <= {seen.id for seen in users.published()}, 60, what="the documents")
    found = [seen.id for seen in users.published()]
    assert len(found) == len(set(found))


def copy(old: Path, new: Path) -> None:
    shutil.rmtree(new, ignore_errors=True)
    subprocess.run(["cp", "-a", str(old), str(new)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("idle", [False, True], ids=["token of a change", "token of an idle moment"])
def test_documents_inserted_after_the_restore_are_published(own: Users, idle: bool) -> None:
    """The server finds out that a change of a token is missing; a token of an idle moment has no change. But the clock
    of the server has advanced, so what was written after the restore is behind that moment.
    """
    assert isinstance(own.mongo, MongoServer)
    kept = own.mongo.data_dir.with_name("copy")
    connector = own.start()
    write(own, 3)
    all_published(own)
    assert connector.stop() == 0
    own.mongo.stop()
    copy(own.mongo.data_dir, kept)
    own.mongo.start()
    connector = own.start()
    write(own, 5)
    all_published(own)
    if idle:
        wait_until(lambda: own.positions()[-1].ordinal == 0, 60, what="a position without a change")
    assert connector.stop() == 0
    assert (own.positions()[-1].ordinal == 0) is idle
    own.mongo.stop()
    copy(kept, own.mongo.data_dir)
    own.mongo.start()
    assert len(own.in_outbox()) == 3
    write(own, 4)
    if not idle:
        own.start(wait=False).failed("HistoryLost")
        assert plan(own)["missed"] == 4
        assert apply(own)["published"] == 4
    connector = own.start()
    write(own, 1)
    all_published(own)
    assert len(own.published()) == 3 + 5 + 4 + 1
    assert connector.stop() == 0
