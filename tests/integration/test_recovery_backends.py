"""Obstacles of a recovery are found before anything is changed, and re-created collections are noticed."""

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


class Backends:
    """Opens the backend of a service with its current settings."""

    def __init__(self) -> None:
        self._opened: list[Backend] = []

    def open(self, service: Service) -> Backend:
        self._opened.append(open_backend(wire(load_pipeline(service.file))))
        return self._opened[-1]

    def steps(self, service: Service) -> list[str]:
        return self.open(service).steps(None)

    def close(self) -> None:
        for backend in self._opened:
            backend.close()


@pytest.fixture
def backends() -> Iterator[Backends]:
    backends = Backends()
    yield backends
    backends.close()


def test_a_table_that_cannot_be_read_in_order(shop: Shop, backends: Backends) -> None:
    assert backends.steps(shop)[-1] == f"create the slot {shop.slot}"
    shop.configure(source={"order_by": ["created_at"]})
    with pytest.raises(LayoutMismatch, match="no unique index on created_at"):
        backends.steps(shop)
    shop.configure(source={"order_by": ["written_at", "id"]})
    with pytest.raises(LayoutMismatch, match="no column written_at"):
        backends.steps(shop)


def test_a_collection_that_cannot_be_read_in_order(users: Users, backends: Backends) -> None:
    """A collection that has yet to be created has no index either."""
    assert backends.steps(users) == ["take a new position in the log"]
    users.configure(source={"order_by": ["created_at", "_id"]})
    with pytest.raises(LayoutMismatch, match="no index on created_at, _id"):
        backends.steps(users)
    with users.client() as client:
        outbox = client[users.database].outbox
        outbox.create_index([("created_at", 1), ("_id", 1)])
        assert backends.steps(users) == ["take a new position in the log"]
        outbox.drop()
        with pytest.raises(LayoutMismatch, match="no index"):
            backends.steps(users)
        users.configure(source={"order_by": ["_id"]})
        assert backends.steps(users)[0] == "create the collections that are missing"


def test_a_collection_that_was_recreated(users: Users, backends: Backends) -> None:
    """Its ids may be assigned again, as in a restored database."""
    with users.client() as client:
        ids = collection_ids(client, users.database, ("outbox",), create=False)
        log = StreamIdentity("rs", users.database, ids, "")
        lost = TokenPosition(log, {"_data": "82"}, ClusterTime(1, 1), 1)
        assert not backends.open(users).went_back(lost)
        assert not backends.open(users).went_back(replace(lost, log=replace(log, collections={"outbox": ""})))
        assert not backends.open(users).went_back(None)
        client[users.database].outbox.drop()
        assert not backends.open(users).went_back(lost), "there is nothing that has ids"
        client[users.database].create_collection("outbox")
        assert backends.open(users).went_back(lost)
    ahead = replace(lost, log=replace(log, collections={}), time=ClusterTime(2**32 - 1, 1))
    assert backends.open(users).went_back(ahead)
