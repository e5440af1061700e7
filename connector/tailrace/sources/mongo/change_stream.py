"""Reads a change stream: a thread fetches the next batches while the last one is processed.

Batches stay raw until they are used. The thread fetches at most two batches ahead, so memory is bounded and a paused
pipeline pauses the server. An error ends the thread; `take` raises it after all batches before it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import bson
import pymongo
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure, PyMongoError

from tailrace.errors import SourceError, TailraceError
from tailrace.positions.mongo import ClusterTime
from tailrace.sources.mongo.changes import Token, token_time
from tailrace.sources.mongo.client import TOO_LARGE, Client, translate, translated_errors
from tailrace.sources.mongo.options import Stage, StreamSpec
from tailrace.sources.mongo.raw_batch import documents_of, split_batch
from tailrace.wakeup import Wakeup

RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
AWAIT_MS = 1000
"""How long the server waits for a change before it sends an empty batch with a new token."""
BATCH = 2000
"""Changes per batch, at most; the server also limits it to 16 MB. With half of it, a drain waited for batches."""
AHEAD = 2
"""Batches fetched ahead, at most."""
FIRST_SECONDS = 3.0
CLOSE_SECONDS = 2.0
DOING = "reading the change stream"
BEGINNING = ClusterTime(0, 0)


class CursorAnswer(NamedTuple):
    """The raw array of changes, and the token behind everything that the server has scanned."""

    changes: bytes
    token: Token | None
    ended: bool


class RawBatch(NamedTuple):
    """The same, with the changes split."""

    changes: list[bytes]
    token: Token | None
    ended: bool

    @classmethod
    def of(cls, answer: CursorAnswer) -> RawBatch:
        return cls(documents_of(answer.changes), answer.token, answer.ended)


class ChangeStreamCursor:
    """A server-side cursor without the driver's logic, which would resume or skip by itself."""

    def __init__(self, client: Client, watched: StreamSpec, stages: list[Stage], *, limit: int = BATCH) -> None:
        """`limit` is the maximum of changes per batch."""
        self._database = client[watched.database]
        self._name = watched.cursor_name
        self._limit = limit
        # A cursor belongs to the session that opened it.
        self._session: ClientSession = client.start_session(causal_consistency=False)
        command = {"aggregate": watched.target, "pipeline": stages, "cursor": {"batchSize": 0}}
        with translated_errors(DOING):
            answer = self._database.command(command, session=self._session)
        self._id = Int64(answer["cursor"]["id"])
        self.token: Token | None = answer["cursor"].get("postBatchResumeToken")

    @property
    def first_token(self) -> Token:
        """The token of the position at which the stream was opened."""
        if self.token is None:
            raise SourceError(
                "MongoDB opened a change stream without saying where it begins",
                remedy="Upgrade to MongoDB 6.0 or newer.",
            )
        return self.token

    def more(self, *, wait_ms: int = AWAIT_MS) -> RawBatch:
        """Returns the next batch; raises the driver's errors."""
        return RawBatch.of(self.ask(wait_ms=wait_ms))

    def ask(self, *, wait_ms: int = AWAIT_MS) -> CursorAnswer:
        """The same, without splitting the changes."""
        command: dict[str, Any] = {
            "getMore": self._id, "collection": self._name, "batchSize": self._limit, "maxTimeMS": wait_ms,
        }  # fmt: skip
        answer = self._database.command(command, session=self._session, codec_options=RAW)
        changes, rest = split_batch(bytes(answer["cursor"].raw))
        fields: dict[str, Any] = bson.decode(rest)
        self._id = Int64(fields["id"])
        return CursorAnswer(changes, fields.get("postBatchResumeToken"), ended=self._id == 0)

    def until(
        self, end: ClusterTime, doing: str, *, wait_ms: int, reached: ClusterTime = BEGINNING
    ) -> Iterator[RawBatch]:
        """Yields the batches up to and including `end`, see `read_until`; translates errors."""

        def more() -> RawBatch:
            with translated_errors(doing):
                return self.more(wait_ms=wait_ms)

        return read_until(more, end, reached)

    def close(self) -> None:
        """Closes the cursor on the server, if it can be reached."""
        try:
            if self._id:
                with pymongo.timeout(CLOSE_SECONDS):
                    self._database.command({"killCursors": self._name, "cursors": [self._id]}, session=self._session)
        except PyMongoError:
            pass  # the server drops the cursor by itself later
        finally:
            self._session.end_session()


def read_until(more: Callable[[], RawBatch], end: ClusterTime, reached: ClusterTime = BEGINNING) -> Iterator[RawBatch]:
    """Yields batches up to and including `end`; its last transaction may span several batches, all with that time.

    Not further, because an outbox that is written to never ends. The caller must stop if a batch has `ended`.
    """
    came = True
    while reached.pair < end.pair or (reached.pair == end.pair and came):
        batch = more()
        yield batch
        came = bool(batch.changes)
        if batch.token is not None:
            reached = token_time(batch.token) or reached


class ChangeStreamThread:
    """Fetches batches ahead in its own thread; the pipeline's thread calls `take`."""

    def __init__(self, open_: Callable[[Stage, int], ChangeStreamCursor], start: Stage, wakeup: Wakeup) -> None:
        """`open_` opens a cursor at a start, with a limit; `wakeup` is set when there is something to take."""
        self._open = open_
        self._behind = start
        self._cursor = open_(start, BATCH)
        self.token = self._cursor.token
        self._wakeup = wakeup
        self._answers: deque[CursorAnswer] = deque()
        self._room = threading.Semaphore(AHEAD)
        self._stopping = threading.Event()
        self._error: TailraceError | None = None
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="change-stream", daemon=True)
        self._thread.start()

    def require_resumed(self) -> None:
        """Raises if the server cannot resume here, which it reports with its first batch.

        If the server has to scan a long part of the oplog, the first batch comes late; then `take` raises the error.
        """
        self._answered.wait(FIRST_SECONDS)
        if self._error is not None and not self._answers:
            raise self._error

    @property
    def waiting(self) -> bool:
        """Whether a batch is available."""
        return bool(self._answers)

    def take(self) -> RawBatch | None:
        """Returns the next batch, or None; raises the error that ended the stream after all batches before it."""
        try:
            answer = self._answers.popleft()
        except IndexError:
            if self._error is not None:
                raise self._error from None
            return None
        self._room.release()
        # Split here and not in the thread, which should keep the server busy.
        return RawBatch.of(answer)

    def close(self) -> None:
        self._stopping.set()
        self._room.release()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive() and self._error is None:
            self._cursor.close()

    def _ask(self) -> CursorAnswer:
        try:
            answer = self._cursor.ask()
        except OperationFailure as error:
            if error.code != TOO_LARGE:
                raise
            # One change in the batch is too large. Read the changes before it one by one, then fail.
            self._cursor.close()
            self._cursor = self._open(self._behind, 1)
            answer = self._cursor.ask()
        if answer.token is not None:
            self._behind = {"startAfter": answer.token}
        return answer

    def _run(self) -> None:
        try:
            while True:
                self._room.acquire()
                if self._stopping.is_set():
                    return
                answer = self._ask()
                self._answers.append(answer)
                self._answered.set()
                self._wakeup.set()
                if answer.ended:
                    return
        except PyMongoError as error:
            self._error = translate(error, DOING)
        except TailraceError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - reported to the pipeline
            self._error = TailraceError(f"the change stream's thread failed: {error!r}", remedy="Report it.")
        finally:
            self._answered.set()
            self._wakeup.set()
