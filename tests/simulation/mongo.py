"""MongoDB as the connector sees it: an oplog, and change streams with resume tokens.

Modelled behaviour (change streams of MongoDB 6 and 7):
- The changes of a transaction share its cluster time and follow each other; each has its own token. Tokens sort as
  texts in log order.
- Each answer has a post-batch resume token, behind everything that was scanned. Batches have any size.
- `startAfter` a token continues behind it, also inside a transaction and after an invalidate event. A token that the
  oplog no longer has fails with ChangeStreamHistoryLost (286).
- Dropping the collection sends a drop event and ends the stream.
- A failover or a restart ends cursors and connections; what was majority-committed stays.
"""

from __future__ import annotations

import datetime
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar

import bson
import pymongo.errors
from bson.int64 import Int64
from bson.timestamp import Timestamp

import tailrace.sources.mongo.change_stream
import tailrace.sources.mongo.source
from simulation.network import RESTART, Lost, Network
from simulation.scheduler import START, Simulation
from simulation.stdlib import Condition, simulated_select, simulated_threading
from tailrace.positions.base import Position
from tailrace.positions.mongo import ClusterTime, TokenPosition
from tailrace.sources.mongo.client import ServerFacts, translated_errors

Document = dict[str, Any]
LAST = 0xFFFFFF
HISTORY_LOST = 286


def token(seconds: int, increment: int, number: int) -> str:
    """A resume token: the time, then the number of the change within it."""
    return f"82{seconds:08X}{increment:08X}{number:06X}"


class MongoDatabase:
    """The server as the database of a pipeline."""

    source: ClassVar[dict[str, Any]] = {
        "mongo": "mongodb://db/?replicaSet=rs0", "collection": "shop.outbox", "start": "now",
    }  # fmt: skip

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.increment = 1
        self.changes: list[tuple[str, bytes, str]] = []
        """Token, change, and the id of the document."""
        self.rolled_back: set[str] = set()
        self.grown = Condition(simulation)
        self.up = True
        self.epoch = 0
        """Increases when all cursors and connections end."""
        self.lost_before = ""
        """Tokens before it are no longer in the oplog."""
        self._begun: str | None = None

    def commit(self, rows: list[str]) -> None:
        self.increment += 1
        for number, row in enumerate(rows, 1):
            document = {
                "_id": row, "aggregatetype": "order", "aggregateid": row.partition("-")[0], "type": "OrderPlaced",
                "payload": f'{{"id":"{row}"}}',
            }  # fmt: skip
            self._add(number, {"operationType": "insert"}, {"fullDocument": document}, row)
        self.grown.wake_all()

    def roll_back(self, rows: list[str]) -> None:
        self.increment += 1
        self.rolled_back.update(rows)

    def drop(self) -> None:
        """Drops the collection."""
        self.increment += 1
        namespace = {"ns": {"db": "shop", "coll": "outbox"}}
        for number, kind in enumerate(("drop", "invalidate"), 1):
            self._add(number, {"operationType": kind}, namespace, "")
        self.grown.wake_all()

    def _add(self, number: int, kind: Document, rest: Document, row: str) -> None:
        now = START + self.simulation.now
        at = Timestamp(int(now), self.increment)
        name = token(at.time, at.inc, number)
        wall = {"clusterTime": at, "wallTime": datetime.datetime.fromtimestamp(now, datetime.UTC)}
        self.changes.append((name, bson.encode({"_id": {"_data": name}, **kind, **wall, **rest}), row))

    def end(self) -> str:
        """The token behind everything so far."""
        return token(int(START + self.simulation.now), self.increment, LAST)

    def written_to(self) -> None: ...

    def fault(self, kind: str) -> None:
        self.epoch += 1
        self.grown.wake_all()
        if kind == RESTART:
            self.up = False

            def start() -> None:
                self.up = True

            self.simulation.at(self.simulation.random.choice((0.3, 4.0)), start)

    def committed_rows(self) -> list[str]:
        begun = self._begun
        return [] if begun is None else [row for name, _, row in self.changes if row and name > begun]

    def covered(self, position: Position) -> int | None:
        assert isinstance(position, TokenPosition)
        found = str(position.token["_data"])
        if self._begun is None:
            self._begun = found
        return sum(1 for name, _, row in self.changes if row and self._begun < name <= found)

    def facts(self) -> ServerFacts:
        now = START + self.simulation.now
        return ServerFacts("rs0", (6, 0, 5), ClusterTime(int(now), self.increment), int(now * 1000))

    def edges(self, simulation: Simulation, network: Network) -> list[tuple[Any, str, Any]]:
        def connect(*_: Any, **__: Any) -> MongoSession:
            return MongoSession(self, network)

        mongo = tailrace.sources.mongo
        return [
            (mongo.source, "connect", connect),
            (mongo.source, "identify", lambda client: client.request("mongo.hello", self.facts)),
            (
                mongo.source,
                "collection_ids",
                lambda client, *_, **__: client.request("mongo.ids", lambda: {"outbox": "7"}),
            ),
            (mongo.source, "select", simulated_select(simulation)),
            (mongo.change_stream, "threading", simulated_threading(simulation)),
        ]


class MongoSession:
    """A client: what the source calls of MongoClient, of its database, and of a session."""

    def __init__(self, server: MongoDatabase, network: Network) -> None:
        self._server, self._network = server, network
        self._epoch = server.epoch
        self._cursors: dict[int, str] = {}

    def __enter__(self) -> MongoSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __getitem__(self, _database: str) -> MongoSession:
        return self

    def close(self) -> None: ...

    def start_session(self, **_: Any) -> MongoSession:
        return self

    def end_session(self) -> None: ...

    def request(self, label: str, effect: Any) -> Any:
        """A question of a start, with the errors of `client.identify` and `client.collection_ids`."""

        def at_server() -> Any:
            if not self._server.up:
                raise pymongo.errors.AutoReconnect("no primary")
            return effect()

        with translated_errors("asking the server"):
            return self._asked(label, at_server)

    def _asked(self, label: str, effect: Any) -> Any:
        try:
            return self._network.request(label, effect, 30.0)
        except Lost:
            raise pymongo.errors.NetworkTimeout("no answer") from None

    def command(self, command: Document, **_: Any) -> Any:
        if "aggregate" in command:
            return self._asked("mongo.aggregate", lambda: self._open(command["pipeline"][0]["$changeStream"]))
        if "getMore" in command:
            return self._more(int(command["getMore"]), command["maxTimeMS"] / 1000)
        return {}

    def _open(self, start: Document) -> Document:
        server = self._server
        if not server.up:
            raise pymongo.errors.AutoReconnect("no primary")
        self._epoch = server.epoch
        after = str(start["startAfter"]["_data"]) if "startAfter" in start else server.end()
        number = len(self._cursors) + 1
        self._cursors[number] = after
        return {"cursor": {"id": number, "postBatchResumeToken": {"_data": after}}}

    def _more(self, number: int, wait: float) -> Document:
        """The server waits for a change, or sends an empty batch with a new token."""
        server = self._server

        def ready() -> bool:
            after = self._cursors[number]
            return server.epoch != self._epoch or any(name > after for name, _, _ in server.changes)

        server.grown.wait_for(ready, wait)
        found: Document = self._asked("mongo.getMore", lambda: self._batch(number))
        return found

    def _batch(self, number: int) -> Document:
        server = self._server
        if server.epoch != self._epoch or not server.up:
            raise pymongo.errors.AutoReconnect("connection closed")
        after = self._cursors[number]
        if after < server.lost_before:
            raise pymongo.errors.OperationFailure("the resume point is no longer in the oplog", HISTORY_LOST, {})
        found = [(name, change) for name, change, _ in server.changes if name > after]
        batch = found[: server.simulation.random.randint(1, 7)]
        end = batch[-1][0] if len(batch) < len(found) or batch else server.end()
        ended = any(bson.decode(change)["operationType"] == "invalidate" for _, change in batch)
        # The cursor moves only with the answer: a lost answer is a lost connection, and a new cursor.
        self._cursors[number] = end
        body = {
            "nextBatch": [bson.decode(change) for _, change in batch],
            "postBatchResumeToken": {"_data": end},
            "id": Int64(0 if ended else number),
        }
        return {"cursor": SimpleNamespace(raw=bson.encode(body))}
