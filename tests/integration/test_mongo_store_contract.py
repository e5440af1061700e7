"""The MongoDB store passes the store contract."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from helpers.store_contract import StoreContract
from helpers.store_scenarios import Stores
from tailrace.projections.mongo.effects import MongoEffects
from tailrace.projections.mongo.store import MongoStore
from tailrace.testkit.stack import MongoServer, ServerChoice
from tailrace.testkit.tcp_proxy import TcpProxy


class MongoStores:
    def __init__(self, server: MongoServer, proxy: TcpProxy) -> None:
        self._server = server
        self._proxy = proxy
        self._database = f"test_{uuid.uuid4().hex[:12]}"

    def new(self) -> MongoStore:
        return MongoStore(self._server.uri, self._database, collections={"things": []})

    def write(self, effects: MongoEffects, key: str, value: str) -> None:
        effects.upsert("things", {"_id": key}, {"value": value})

    async def written(self) -> dict[str, str]:
        def look() -> dict[str, str]:
            with self._server.client() as client:
                return {each["_id"]: each["value"] for each in client[self._database].things.find()}

        return await asyncio.to_thread(look)

    async def cut(self) -> None:
        """Ends connections and sessions, as an election does: a transaction outlives its connection."""

        def kill() -> None:
            with self._server.client() as client:
                client.admin.command("killAllSessions", [])

        await asyncio.to_thread(kill)
        self._proxy.cut()


@pytest.fixture(scope="module")
def wired() -> Iterator[tuple[MongoServer, TcpProxy]]:
    """A separate server, since the tests kill all sessions."""
    with MongoServer(choice=ServerChoice.LOCAL) as server, TcpProxy((server.host, server.port)) as proxy:
        server.advertise(proxy.port)
        yield server, proxy


class TestMongoStore(StoreContract):
    @pytest.fixture
    def stores(self, wired: tuple[MongoServer, TcpProxy]) -> Stores:
        return MongoStores(*wired)
