"""Strict acceptance: what a service accepts is in its outbox first."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from tailrace import failpoints
from tailrace.embedded.outbox import LOGGER, EmbeddedOutbox


class strict:  # noqa: N801 - used as a statement, as `suppress` is
    """Writes an entry before its body runs, and deletes it if the body raises.

        with strict(outbox, tx_hash, raw):
            mempool.accept(transaction)

    If the entry cannot be written, the body does not run; with `EmbeddedOutbox(strict=False)` it runs, and a warning is
    logged. The entry is drained after the body has ended; if the process dies within the body, the entry stays and is
    drained at the next start. `async with` writes in a thread. Nothing is captured if `is_new` is False or the outbox
    is not enabled.
    """

    def __init__(self, outbox: EmbeddedOutbox, key: str | bytes, raw: bytes, *, is_new: bool = True) -> None:
        self._outbox = outbox
        self._key = key
        self._raw = raw
        self._captures = is_new and outbox.enabled
        self._sequence: int | None = None
        self._mutex = threading.Lock()
        self._left = False
        """The task was cancelled while its thread was writing."""

    def __enter__(self) -> strict:
        if self._captures:
            self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._sequence is None:
            return
        if kind is None:
            failpoints.reached(failpoints.OUTBOX_ACCEPTED)
            self._outbox.accepted(self._key, self._sequence)
        else:
            self._reject()

    async def __aenter__(self) -> strict:
        if self._captures:
            try:
                await asyncio.to_thread(self._begin)
            except asyncio.CancelledError:
                with self._mutex:
                    self._left = True
                    written = self._sequence is not None
                if written:
                    self._reject()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.__exit__(None, None, None)  # one of a few that replace another entry writes
        elif self._sequence is not None:
            try:
                await asyncio.to_thread(self._reject)
            finally:
                # A task that is cancelled again does not stop the thread, but one that waits for it never gets it.
                self._reject()

    def _begin(self) -> None:
        try:
            sequence = self._outbox.begin(self._key, self._raw)
        except Exception as error:
            if self._outbox.strict:
                raise
            LOGGER.warning("not captured, and accepted without it: %s", error)
            return
        with self._mutex:
            self._sequence = sequence
            left = self._left
        if left:
            self._reject()
        else:
            failpoints.reached(failpoints.OUTBOX_WRITTEN)

    def _reject(self) -> None:
        with self._mutex:
            sequence, self._sequence = self._sequence, None
        if sequence is not None:
            failpoints.reached(failpoints.OUTBOX_REJECTING)
            self._outbox.rejected(self._key, sequence)
            failpoints.reached(failpoints.OUTBOX_REJECTED)
