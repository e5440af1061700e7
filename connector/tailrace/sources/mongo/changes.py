"""Turns the changes of a stream into rows and positions.

The server sends changes that a majority has committed, in commit order; the changes of one transaction follow each
other and share its cluster time. Every change has its own resume token, so the position behind it is exact. A change
that is sent in fragments counts as one: its position is that of the last fragment.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

from bson import json_util
from bson.errors import BSONError
from bson.timestamp import Timestamp

from tailrace.errors import CollectionGone, ProtocolError
from tailrace.event import Row
from tailrace.positions.mongo import ClusterTime, TokenPosition
from tailrace.sources.mongo.decoding import all_decoded, decoded
from tailrace.sources.mongo.documents import STRICT, Document, DocumentConverter, milliseconds
from tailrace.sources.mongo.raw_batch import insert_of

Token = dict[str, Any]
TIMESTAMP = "82"
"""The prefix of tokens that begin with a cluster time: all tokens since MongoDB 4.2."""


class ChangeFollower:
    """Follows the stream from `start`: call `feed` for each change, and take `rows` and `position` in between."""

    def __init__(
        self, start: TokenPosition, documents: DocumentConverter, *, passing: ClusterTime | None = None
    ) -> None:
        """Drops and renames up to the time `passing` are ignored: the user has accepted them."""
        self.rows: list[Row] = []
        self._start = start
        self._documents = documents
        self._passing = passing
        self._token = start.token
        self._time = (start.time.seconds, start.time.increment)
        self._ordinal = start.ordinal
        self._at_ms = start.at_ms
        self._fragments: Document = {}

    @property
    def position(self) -> TokenPosition:
        """The position behind all rows taken so far."""
        return replace(
            self._start,
            token=self._token,
            time=ClusterTime(*self._time),
            at_ms=self._at_ms,
            ordinal=self._ordinal,
            collection_read=None,
        )

    def feed(self, raw: bytes) -> None:
        """Handles one raw change; appends its row, if it has one, to `rows`."""
        self.feed_all([raw])

    def feed_all(self, raw: list[bytes]) -> None:
        """The same for several changes; decodes them together if all are plain inserts, which is faster."""
        try:
            self._feed_all(raw)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, struct.error, BSONError) as error:
            raise ProtocolError(
                f"a change cannot be read ({type(error).__name__})",
                why="It does not have the form of a change event.",
                remedy="Start again. If that fails again, report it with the server's version.",
            ) from error

    def _feed_all(self, raw: list[bytes]) -> None:
        inserts = [insert for insert in map(insert_of, raw) if insert is not None]
        if len(inserts) < len(raw) or self._fragments:
            for each in raw:
                self._feed_other(each)
            return
        documents = all_decoded([insert[4] for insert in inserts])
        row, add, last = self._documents.row, self.rows.append, self._token["_data"].encode()
        time, ordinal, at_ms, prefix, before = self._time, self._ordinal, self._at_ms, "", len(self.rows)
        for (token, seconds, increment, wall_ms, _), document in zip(inserts, documents, strict=True):
            # A stream that starts by time begins with all changes of that time, also those before the position.
            if token <= last:
                continue
            if (seconds, increment) != time:
                time, ordinal, prefix = (seconds, increment), 0, ""
            ordinal += 1
            prefix = prefix or f"{seconds}.{increment}:"
            add(row(document, f"{prefix}{ordinal}", wall_ms))
            last, at_ms = token, wall_ms
        if len(self.rows) > before:
            self._token, self._time, self._ordinal, self._at_ms = {"_data": last.decode()}, time, ordinal, at_ms

    def _feed_other(self, raw: bytes) -> None:
        """Handles other changes: a fragment, a drop or rename, or an insert whose token is not just a text."""
        change = decoded(raw)
        if "splitEvent" in change or self._fragments:
            whole = self._assembled(change)
            if whole is None:
                return
            change = whole
        stamp: Timestamp = change["clusterTime"]
        time = (stamp.time, stamp.inc)
        token = change["_id"]
        if token["_data"] <= self._token["_data"]:
            return
        if change["operationType"] != "insert":
            self._ended(change, ClusterTime(*time))
            self._token, self._time, self._ordinal = plain_token(token), time, 0
            return
        wall = milliseconds(change.get("wallTime"))
        self._add(change["fullDocument"], plain_token(token), time, stamp.time * 1000 if wall is None else wall)

    def _add(self, document: Document, token: Token, time: tuple[int, int], at_ms: int) -> None:
        ordinal = self._ordinal + 1 if time == self._time else 1
        position = f"{time[0]}.{time[1]}:{ordinal}"
        self.rows.append(self._documents.row(document, position, at_ms))
        self._token, self._time, self._ordinal, self._at_ms = token, time, ordinal, at_ms

    def idle(self, token: Token) -> None:
        """Notes that there are no further changes up to `token`."""
        if self._fragments or token["_data"] <= self._token["_data"]:
            return
        self._token = plain_token(token)
        time = token_time(token)
        if time is not None and time.pair != self._time:
            self._time, self._ordinal = time.pair, 0
            self._at_ms = max(self._at_ms, time.seconds * 1000)

    def _assembled(self, fragment: Document) -> Document | None:
        """Returns the complete change once its last fragment has arrived; each fragment has other fields."""
        part = fragment.pop("splitEvent", {"fragment": 0, "of": 0})
        number, of = int(part["fragment"]), int(part["of"])
        before = self._fragments.get("", 0)
        if number != before + 1:
            raise ProtocolError(
                f"behind fragment {before} of a change came {f'fragment {number} of {of}' if of else 'a whole one'}",
                remedy="Start again; if it fails again, report it with the server's version.",
            )
        self._fragments.update(fragment)
        self._fragments[""] = number
        if number < of:
            return None
        whole, self._fragments = self._fragments, {}
        del whole[""]
        return whole

    def _ended(self, change: Document, time: ClusterTime) -> None:
        if self._passing is not None and time.pair <= self._passing.pair:
            return
        name, new_name = (".".join(map(str, change.get(part, {}).values())) for part in ("ns", "to"))
        what = {
            "drop": f"the collection {name} was dropped",
            "rename": f"the collection {name} was renamed to {new_name}",
            "dropDatabase": f"the database {name} was dropped",
        }.get(change["operationType"], "the server has ended the stream: the watched collection is gone")
        raise CollectionGone(
            f"{what} at {time}",
            why="Documents inserted before are published, or will be at the next start. Documents inserted from now on "
            "under that name belong to another collection.",
            remedy="Re-create the collection if it is still needed, then start once with --adopt, which continues "
            "behind this point. If the log may have lost something: `tailrace recover plan FILE`.",
        )


def plain_token(token: Token) -> Token:
    """Returns the token as JSON: one text, and type bits if the document's `_id` has numbers."""
    if len(token) == 1:
        return token
    plain: Token = json.loads(json_util.dumps(token, json_options=STRICT))
    return plain


def server_token(token: Token) -> Token:
    """Returns the token in the server's form."""
    given: Token = json_util.loads(json.dumps(token), json_options=STRICT)
    return given


def token_time(token: Token) -> ClusterTime | None:
    """Returns the cluster time at the start of a token; None if it has another format."""
    data = str(token["_data"])
    if not data.startswith(TIMESTAMP) or len(data) < 18:
        return None
    return ClusterTime(int(data[2:10], 16), int(data[10:18], 16))
