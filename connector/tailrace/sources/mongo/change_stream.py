"""The conversation with a change stream: one thread asks for the next batch while the last one is worked on.

A batch arrives raw and is decoded where it is used. The thread asks ahead by two batches and no further, so memory is
bounded and a pipeline that pauses pauses the server. An error ends the thread and is raised in `take`, behind
everything that came before it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import bson
import pymongo
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure, PyMongoError

from tailrace.errors import TailraceError
from tailrace.sources.mongo.changes import Token
from tailrace.sources.mongo.client import TOO_LARGE, Client, translate, translated_errors
from tailrace.sources.mongo.options import Stage, StreamSpec
from tailrace.sources.mongo.raw_batch import documents_of, split_batch
from tailrace.wakeup import Wakeup

RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
AWAIT_MS = 1000
"""How long the server waits for a change before it answers that there is none; its answer brings a new token."""
BATCH = 2000
"""Changes in one answer, at most; the server also keeps to 16 MB. With half of it, a drain waited for answers."""
AHEAD = 2
"""Answers that wait to be taken, at most."""
FIRST_SECONDS = 3.0
FAREWELL_SECONDS = 2.0
DOING = "reading the change stream"


class CursorAnswer(NamedTuple):
    """Raw changes, as an array that is not divided yet, and the token behind all that the server has looked at."""

    changes: bytes
    token: Token | None
    ended: bool


class RawBatch(NamedTuple):
    """The same with the changes one by one."""

    changes: list[bytes]
    token: Token | None
    ended: bool

    @classmethod
    def of(cls, answer: CursorAnswer) -> RawBatch:
        return cls(documents_of(answer.changes), answer.token, answer.ended)


class ChangeStreamCursor:
    """A server-side cursor, asked by hand: the driver's own would resume, skip or hide things by itself."""

    def __init__(self, client: Client, watched: StreamSpec, stages: list[Stage], *, limit: int = BATCH) -> None:
        """`limit` is how many changes come in one answer, at most."""
        self._database = client[watched.database]
        self._name = watched.cursor_name
        self._limit = limit
        # A cursor belongs to the session it was made in.
        self._session: ClientSession = client.start_session(causal_consistency=False)
        command = {"aggregate": watched.target, "pipeline": stages, "cursor": {"batchSize": 0}}
        with translated_errors(DOING):
            answer = self._database.command(command, session=self._session)
        self._id = Int64(answer["cursor"]["id"])
        self.token: Token | None = answer["cursor"].get("postBatchResumeToken")

    def more(self, *, wait_ms: int = AWAIT_MS) -> RawBatch:
        """The next answer; raises the driver's errors."""
        return RawBatch.of(self.ask(wait_ms=wait_ms))

    def ask(self, *, wait_ms: int = AWAIT_MS) -> CursorAnswer:
        """The same, for those who ask again before they look at it."""
        command: dict[str, Any] = {
            "getMore": self._id, "collection": self._name, "batchSize": self._limit, "maxTimeMS": wait_ms,
        }  # fmt: skip
        answer = self._database.command(command, session=self._session, codec_options=RAW)
        changes, rest = split_batch(bytes(answer["cursor"].raw))
        told: dict[str, Any] = bson.decode(rest)
        self._id = Int64(told["id"])
        return CursorAnswer(changes, told.get("postBatchResumeToken"), ended=self._id == 0)

    def close(self) -> None:
        """Tells the server, if it listens."""
        try:
            if self._id:
                with pymongo.timeout(FAREWELL_SECONDS):
                    self._database.command({"killCursors": self._name, "cursors": [self._id]}, session=self._session)
        except PyMongoError:
            pass  # it forgets the cursor by itself
        finally:
            self._session.end_session()


class ChangeStreamThread:
    """Fetches ahead from a cursor in a thread of its own; `take` is for the pipeline's."""

    def __init__(self, open_: Callable[[Stage, int], ChangeStreamCursor], start: Stage, wake: Wakeup) -> None:
        """`open_` gives a cursor at a start, with a limit; `wake` is set whenever there is something to take."""
        self._open = open_
        self._behind = start
        self._cursor = open_(start, BATCH)
        self.token = self._cursor.token
        self._wake = wake
        self._answers: deque[CursorAnswer] = deque()
        self._room = threading.Semaphore(AHEAD)
        self._stopping = threading.Event()
        self._error: TailraceError | None = None
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="change-stream", daemon=True)
        self._thread.start()

    def require_resumed(self) -> None:
        """Raises what the server has against resuming here: it says so in its first answer, not before.

        Where it has a long way to look, the first answer takes its time; then `take` raises it.
        """
        self._answered.wait(FIRST_SECONDS)
        if self._error is not None and not self._answers:
            raise self._error

    @property
    def waiting(self) -> bool:
        """Whether something can be taken."""
        return bool(self._answers)

    def take(self) -> RawBatch | None:
        """The next batch, or None if none has come; raises what ended the stream, once all before it is taken."""
        try:
            answer = self._answers.popleft()
        except IndexError:
            if self._error is not None:
                raise self._error from None
            return None
        self._room.release()
        # Here and not in the thread: while it divides one, the server would have nothing to do.
        return RawBatch.of(answer)

    def close(self) -> None:
        self._stopping.set()
        self._room.release()
        self._thread.join(FAREWELL_SECONDS)
        if not self._thread.is_alive() and self._error is None:
            self._cursor.close()

    def _ask(self) -> CursorAnswer:
        try:
            answer = self._cursor.ask()
        except OperationFailure as error:
            if error.code != TOO_LARGE:
                raise
            # The server refuses the whole answer for one change in it. Those before it come one by one, then it fails.
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
                self._wake.set()
                if answer.ended:
                    return
        except PyMongoError as error:
            self._error = translate(error, DOING)
        except TailraceError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - whatever it is, the pipeline must hear of it
            self._error = TailraceError(f"the change stream's thread failed: {error!r}", remedy="Report it.")
        finally:
            self._answered.set()
            self._wake.set()
