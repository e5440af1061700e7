"""The MongoDB checks of `tailrace check`: rights of the user, collections, replica set and oplog.

They change nothing: a change stream is opened as the source opens it, and closed at once. Checks that the user has no
right to (members, write concern, oplog) are skipped. Rules that need no server are in `mongo_rules.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from tailrace.check.health_mongo import first_waiting, observer, read_log, sessions
from tailrace.check.mongo_rules import (
    allows,
    check_fit,
    check_members,
    check_mongo_encryption,
    check_mongo_marks,
    check_mongo_version,
    check_user,
    check_window,
    check_write_concern,
    create_index,
    is_encrypted,
    is_unverified,
)
from tailrace.check.result import CheckResult, fail, failed, gather, ok, warn
from tailrace.check.rules import check_clock
from tailrace.errors import AccessRefused, Rejected, SourceError, SourceUnavailable, TailraceError, Unavailable
from tailrace.outbox.layouts import ColumnMap, Layout
from tailrace.outbox.mongosh import USERS, mark_privileges
from tailrace.positions.base import Position, other_kind
from tailrace.positions.mongo import TokenPosition
from tailrace.sources.mongo.change_stream import ChangeStreamCursor
from tailrace.sources.mongo.client import collection_ids, identify, require_replica_set, translated_errors
from tailrace.sources.mongo.documents import CODEC, Document, DocumentConverter, milliseconds
from tailrace.sources.mongo.options import MongoOptions, can_split
from tailrace.sources.mongo.resume_check import check_resume
from tailrace.sources.mongo.start_where import count_documents, require_unchanged, require_valid

SAMPLE = 20
"""The number of newest documents of each collection that are read with the layout."""
MISSING = "the outbox collection of the stored position does not exist"


class MongoChecks:
    """Checks one server; implements `preflight.DatabaseChecks`."""

    needed_checks = frozenset({"mongo version", "replica set", "collection", "rights"})
    stores_position = False

    def __init__(self, options: MongoOptions, columns: ColumnMap, *, row_marks: bool = False) -> None:
        self._options = options
        self._row_marks = row_marks
        self._map = columns
        self._hello: Document = {}
        self._version: tuple[int, ...] = ()
        self._login: Document = {}
        self._missing: list[str] = []
        self._may_stream = False
        self.reachable = False
        self.columns: frozenset[str] = frozenset()

    def checks(self) -> list[CheckResult]:
        try:
            with observer(self._options) as self._client:
                self._identify()
                return self._run_checks()
        except TailraceError as error:
            away = isinstance(error, Unavailable)
            return [failed("mongo", error, "Start MongoDB, or correct the hosts in source.mongo." if away else "")]

    def _identify(self) -> None:
        with translated_errors("identifying the server"):
            self._client.admin.command("ping")  # connects: not part of the measured time
            before = time.time()
            self._hello = self._client.admin.command("hello")
            self._identified_ms = (before + time.time()) * 500
            self._version = tuple(self._client.server_info()["versionArray"][:3])
            status = self._client.admin.command({"connectionStatus": 1, "showPrivileges": True})
        self._login = status["authInfo"]
        self.reachable = True

    def _run_checks(self) -> list[CheckResult]:
        checks: list[tuple[str, Callable[[], CheckResult | None]]] = [
            ("mongo", self._connected),
            ("mongo encryption", self._encryption),
            ("mongo version", lambda: check_mongo_version(self._version)),
            ("clock", self._clock),
            ("user", self._user),
            ("replica set", self._replica_set),
        ]
        if self._has_streams:
            checks += [
                ("collection", self._collection),
                ("rights", self._rights),
                ("marks", self._marks),
                ("fields", self._fields),
                ("order_by", self._order_by),
                ("start_where", self._start_where),
                ("members", self._members),
                ("write concern", self._write_concern),
                ("oplog", self._oplog),
            ]
        return gather(checks)

    def is_read_at(self, position: Position) -> bool:
        if not isinstance(position, TokenPosition):
            return False
        log, options = position.log, self._options
        same = (log.replica_set, log.database) == (self._hello.get("setName"), options.database)
        return same and not log.collections.keys().isdisjoint(options.collections)

    def start(self, stored: Position | None) -> CheckResult:
        """Opens the change stream where a start would, and reads the first change."""
        if stored is not None and not isinstance(stored, TokenPosition):
            raise other_kind(stored, "MongoDB")
        options = self._options
        if stored is None:
            first = "the existing documents" if options.beginning else "documents inserted from then on"
            return ok("start", f"a first start: no position is stored, it begins with {first}")
        if self._missing:
            remedy = (
                "Correct source.collection. If the collection will be re-created: `tailrace recover plan FILE` lists "
                "what was missed. One start with --adopt continues without the events of the lost collection."
            )
            return fail("start", f"{MISSING}: {options.database}.{self._missing[0]}", remedy)
        require_unchanged(stored, options)
        with observer(options) as client:
            facts = identify(client)
            ids = collection_ids(client, options.database, options.collections, create=False)
            found = facts.stream(options.watched, ids)
            check_resume(stored, found, facts.now)
            busy = bool(sessions(client, options.app_name))
            try:
                first_waiting(client, options, stored, splits=can_split(facts.version))
            except SourceUnavailable:
                found_out = f"the server found no change after the stored position {stored} in time"
                return warn("start", found_out, "Run the check again: after many writes the server has much to search.")
        return ok("start", f"{'runs now' if busy else 'resumes'} at the stored position {stored}")

    @property
    def _has_streams(self) -> bool:
        """Whether the server is a member of a replica set; other servers have no change streams."""
        return "setName" in self._hello

    @property
    def _hosts(self) -> list[str]:
        return [host for host, _ in self._client.nodes]

    def _connected(self) -> CheckResult:
        servers = ", ".join(f"{host}:{port}" for host, port in sorted(self._client.nodes))
        users = self._login["authenticatedUsers"]
        return ok(
            "mongo", f"database {self._options.database} at {servers} as {users[0]['user'] if users else 'anyone'}"
        )

    def _encryption(self) -> CheckResult:
        uri = self._options.uri
        return check_mongo_encryption(self._hosts, encrypted=is_encrypted(uri), unverified=is_unverified(uri))

    def _clock(self) -> CheckResult | None:
        now_ms = milliseconds(self._hello.get("localTime"))
        return None if now_ms is None else check_clock(now_ms, self._identified_ms)

    def _replica_set(self) -> CheckResult:
        require_replica_set(self._hello)
        return ok("replica set", str(self._hello["setName"]))

    def _user(self) -> CheckResult:
        return check_user(self._login["authenticatedUsers"], self._login["authenticatedUserRoles"], self._hosts)

    def _may(self, action: str, collection: str) -> bool:
        """Whether the user has the right. Without access control everybody has it."""
        privileges = self._login["authenticatedUserPrivileges"]
        return not self._login["authenticatedUsers"] or allows(privileges, action, self._options.database, collection)

    def _collection(self) -> CheckResult:
        options, name = self._options, "collection"
        full = ", ".join(f"{options.database}.{each}" for each in options.collections)
        try:
            with translated_errors("looking for the outbox collections"):
                wanted = {"name": {"$in": list(options.collections)}}
                listed = list(self._client[options.database].list_collections(filter=wanted))
        except AccessRefused:
            remedy = f"Grant listCollections on the database {options.database}."
            return warn(name, f"{full}: cannot be listed, so a re-created collection cannot be recognised", remedy)
        kinds = {str(each["name"]): str(each["type"]) for each in listed}
        self._missing = [each for each in options.collections if each not in kinds]
        for each in options.collections:
            if kinds.get(each, "collection") != "collection":
                found = f"{options.database}.{each} is a {kinds[each]}: it has no change stream"
                return fail(name, found, "Name the collection that documents are inserted into in source.collection.")
        if not self._missing:
            return ok(name, full)
        return self._to_create(self._missing[0])

    def _to_create(self, missing: str) -> CheckResult:
        full = f"{self._options.database}.{missing}"
        remedy = f"db.getSiblingDB({json.dumps(self._options.database)}).createCollection({json.dumps(missing)})"
        if not self._options.create:
            return fail("collection", f"there is no {full}, and source.create is false", remedy)
        if not self._may("createCollection", missing):
            return fail("collection", f"there is no {full}, and this user may not create it", remedy)
        return ok("collection", f"{full}: will be created on the first start")

    def _rights(self) -> CheckResult:
        """Opens and closes the change stream that the source would open."""
        watched = self._options.watched
        stages = watched.stages({}, splits=can_split(self._version))
        ChangeStreamCursor(self._client, watched, stages).close()
        self._may_stream = True
        return ok("rights", f"find and changeStream on {watched.database}.{', '.join(watched.collections)}")

    def _marks(self) -> CheckResult | None:
        """Whether the user may write row marks: updates of the outbox, and two collections beside it."""
        if not self._row_marks:
            return None
        wanted = mark_privileges(self._options.collections)
        lacking = {
            name: [each for each in actions if not self._may(each, name)]
            for name, actions in wanted.items()
            if not all(self._may(each, name) for each in actions)
        }
        roles = [str(each["role"]) for each in self._login["authenticatedUserRoles"] if each.get("db") == USERS]
        return check_mongo_marks(self._options.database, lacking, roles[0] if roles else "ROLE")

    def _fields(self) -> CheckResult | None:
        """Reads the newest documents as the source and the layout do."""
        if not self._may_stream:
            return None
        options, columns = self._options, set[str]()
        documents = DocumentConverter.of(options)
        layout, misfits, total = Layout(self._map), list[str](), 0
        for collection in options.collections:
            for document in self._newest(collection):
                total += 1
                row = documents.row(document, "", 0)
                try:
                    layout.read(row)
                    columns.update(column.name for column in row.columns)
                except Rejected as error:
                    misfits.append(error.explanation)
        self.columns = frozenset(columns)
        mapped = ", ".join(f"{part}={column}" for part, column in self._map.parts())
        return check_fit(total, misfits, mapped)

    def _newest(self, collection: str) -> list[Document]:
        question = {"find": collection, "sort": {"_id": -1}, "limit": SAMPLE, "singleBatch": True}
        with translated_errors("reading the newest documents"):
            answer = self._client[self._options.database].command(question, codec_options=CODEC)
        found: list[Document] = answer["cursor"]["firstBatch"]
        return found

    def _order_by(self) -> CheckResult | None:
        """Whether there is an index on source.order_by: a first start reads existing documents in its order."""
        options, order = self._options, dict.fromkeys(self._options.order_by, 1)
        if not options.beginning or not self._may_stream:
            return None
        for collection in options.collections:
            question = {"find": collection, "sort": order, "hint": order, "limit": 1, "singleBatch": True}
            try:
                with translated_errors("reading by an index"):
                    self._client[options.database].command(question, codec_options=CODEC)
            except (AccessRefused, Unavailable):
                raise
            except SourceError:
                found = f"{options.database}.{collection} has no index on {', '.join(order)}"
                remedy = create_index(options.database, collection, order)
                return fail("order_by", found, f"{remedy} // or set source.order_by: [_id]")
        return ok("order_by", ", ".join(order))

    def _start_where(self) -> CheckResult | None:
        """Whether the first read can select its documents; how many those are, if they can be counted in time."""
        options = self._options
        if not options.start_where or not options.beginning or not self._may_stream:
            return None
        require_valid(self._client, options.database, options.collections, options.start_where)
        counted = count_documents(self._client, options.database, options.collections, options.start_where)
        if counted is None:
            return ok("start_where", f"{options.start_where} (there are too many documents to count them here)")
        selected, total = counted
        found = f"a first read publishes {selected:,} documents and leaves out {total - selected:,}"
        return ok("start_where", f"{options.start_where}: {found}")

    def _members(self) -> CheckResult | None:
        if "setName" not in self._hello:
            return None
        return _if_allowed(
            lambda: check_members(
                self._client.admin.command("replSetGetStatus"),
                self._client.admin.command("replSetGetConfig")["config"],
            )
        )

    def _write_concern(self) -> CheckResult | None:
        return _if_allowed(
            lambda: check_write_concern(self._client.admin.command("getDefaultRWConcern").get("defaultWriteConcern"))
        )

    def _oplog(self) -> CheckResult | None:
        log = read_log(self._client) if "setName" in self._hello else None
        return None if log is None else check_window(log.last - log.first, full=log.full)


def _if_allowed(check: Callable[[], CheckResult]) -> CheckResult | None:
    """Runs a check; returns None if the user has no right to run it, which needs no fix."""
    try:
        with translated_errors("reading the configuration of the servers"):
            return check()
    except AccessRefused:
        return None
