"""What a database has against a recovery is found before anything is changed, and what was made anew is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from helpers.service import Service
from helpers.shop import Shop
from helpers.users import Users
from tailrace.config.load import load_pipeline
from tailrace.errors import LayoutMismatch
from tailrace.positions.mongo import ClusterTime, StreamIdentity, TokenPosition
from tailrace.recovery.backend import Backend
from tailrace.recovery.plan import open_backend
from tailrace.sources.mongo.client import collection_ids
from tailrace.worker.wiring import wire


class Sites:
    """Opens the site of a service, with its settings as they are by then."""

    def __init__(self) -> None:
        self._opened: list[Backend] = []

    def open(self, service: Service) -> Backend:
        self._opened.append(open_backend(wire(load_pipeline(service.file))))
        return self._opened[-1]

    def steps(self, service: Service) -> list[str]:
        return self.open(service).steps(None)

    def close(self) -> None:
        for site in self._opened:
            site.close()


@pytest.fixture
def sites() -> Iterator[Sites]:
    sites = Sites()
    yield sites
    sites.close()


def test_a_table_that_cannot_be_read_in_order(shop: Shop, sites: Sites) -> None:
    assert sites.steps(shop)[-1] == f"create the slot {shop.slot}"
    shop.configure(source={"order_by": ["created_at"]})
    with pytest.raises(LayoutMismatch, match="no unique index on created_at"):
        sites.steps(shop)
    shop.configure(source={"order_by": ["written_at", "id"]})
    with pytest.raises(LayoutMismatch, match="no column written_at"):
        sites.steps(shop)


def test_a_collection_that_cannot_be_read_in_order(users: Users, sites: Sites) -> None:
    """One that is to be created has no index either."""
    assert sites.steps(users) == ["take a new place in the log"]
    users.configure(source={"order_by": ["created_at", "_id"]})
    with pytest.raises(LayoutMismatch, match="no index on created_at, _id"):
        sites.steps(users)
    with users.client() as client:
        outbox = client[users.database].outbox
        outbox.create_index([("created_at", 1), ("_id", 1)])
        assert sites.steps(users) == ["take a new place in the log"]
        outbox.drop()
        with pytest.raises(LayoutMismatch, match="no index"):
            sites.steps(users)
        users.configure(source={"order_by": ["_id"]})
        assert sites.steps(users)[0] == "create the collections that are missing"


def test_a_collection_that_was_made_anew(users: Users, sites: Sites) -> None:
    """Its ids may be given out once more, as in a database that went back."""
    with users.client() as client:
        ids = collection_ids(client, users.database, ("outbox",), create=False)
        log = StreamIdentity("rs", users.database, ids, "")
        lost = TokenPosition(log, {"_data": "82"}, ClusterTime(1, 1), 1)
        assert not sites.open(users).went_back(lost)
        assert not sites.open(users).went_back(replace(lost, log=replace(log, collections={"outbox": ""})))
        assert not sites.open(users).went_back(None)
        client[users.database].outbox.drop()
        assert not sites.open(users).went_back(lost), "there is nothing that has ids"
        client[users.database].create_collection("outbox")
        assert sites.open(users).went_back(lost)
    ahead = replace(lost, log=replace(log, collections={}), time=ClusterTime(2**32 - 1, 1))
    assert sites.open(users).went_back(ahead)
