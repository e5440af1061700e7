"""RecordingOutbox: an Outbox for tests of a service. It validates events and keeps them instead of writing a row."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, cast
from uuid import UUID

from tailrace.errors import ConfigError, EventExists
from tailrace.outbox.writer.drivers.base import Driver, driver_for
from tailrace.outbox.writer.event import NewEvent, PreparedEvent
from tailrace.outbox.writer.outbox import Outbox
from tailrace.outbox.writer.payload import Payload
from tailrace.outbox.writer.pressure import Pressure
from tailrace.outbox.writer.receipt import Receipt
from tailrace.outbox.writer.requests import Handle
from tailrace.testkit.recorded_events import RecordedEvent, RecordedEvents

Argument = Any
"""An argument of Outbox, under the same name."""


class RecordingOutbox(Outbox):
    """Takes the arguments of Outbox. An event that Outbox would refuse is refused here with the same error.

    A real connection must be in a transaction, as for Outbox; it is not used otherwise. Anything else, such as None,
    stands for a connection in a transaction. Whether the transaction is committed later is not known here.
    """

    def __init__(self, **options: Argument) -> None:
        super().__init__(**options)
        self.events = RecordedEvents()

    def of(self, type: str) -> RecordedEvents:
        """Returns the events of this type, in their order."""
        return RecordedEvents(event for event in self.events if event.type == type)

    def only(self, type: str) -> RecordedEvent:
        """Returns the only event that was added. Fails if there is none, if there are several, or of another type."""
        if [event.type for event in self.events] != [type]:
            found = "\n".join(f"  {number}. {event!r}" for number, event in enumerate(self.events, start=1))
            raise AssertionError(f"expected one event, {type}; the outbox has " + (f"\n{found}" if found else "none"))
        return self.events[0]

    def clear(self) -> None:
        """Forgets all events."""
        self.events.clear()

    def add(self, connection: Handle, type: str, payload: Payload, **event: Argument) -> Receipt:
        prepared = self._prepared(NewEvent(type, payload, **event))
        return cast("Receipt", _answer(connection, lambda: self._record([prepared])[0], writes=True))

    def add_many(self, connection: Handle, events: Iterable[NewEvent]) -> list[Receipt]:
        prepared = [self._prepared(event) for event in events]
        return cast("list[Receipt]", _answer(connection, lambda: self._record(prepared), writes=True))

    def exists(self, connection: Handle, event_id: str | UUID) -> bool:
        wanted = str(event_id)
        return cast("bool", _answer(connection, lambda: any(event.id == wanted for event in self.events)))

    def pressure(self, connection: Handle) -> Pressure:
        """Returns the pressure of a connector that is never behind."""
        return cast("Pressure", _answer(connection, lambda: Pressure(True, 0, 0.0, 0, "events are recorded")))

    def slow_down(self, connection: Handle) -> float:
        """Waits for nothing: a test must not be slower than its service."""
        return cast("float", _answer(connection, lambda: 0.0))

    def _record(self, events: list[PreparedEvent]) -> RecordedReceipts:
        receipts, recorded = RecordedReceipts(), []
        known = {event.id for event in self.events}
        for event in events:
            created = event.id not in known
            if created:
                known.add(event.id)
                recorded.append(RecordedEvent.of(event))
            elif not self._layout.repeatable:
                raise EventExists(
                    "the outbox has an event with this id already",
                    why="An id names one event.",
                    remedy="Let the writer make the id, or ask outbox.exists(connection, id) first.",
                )
            receipts.append(RecordedReceipt(event.id, created=created))
        self.events.extend(recorded)
        return receipts


def _answer(connection: Handle, answer: Callable[[], object], *, writes: bool = False) -> object:
    """Returns the answer, or an awaitable for it if the connection is one of asyncio."""
    try:
        driver = driver_for(connection)
    except ConfigError:
        return answer()  # no connection at all: the test has no database
    if driver.is_async:
        return _answer_later(driver, answer, writes=writes)
    if writes:
        driver.require_transaction()
    return answer()


async def _answer_later(driver: Driver, answer: Callable[[], object], *, writes: bool) -> object:
    if writes:
        driver.require_transaction()
    return answer()


class RecordedReceipt(Receipt):
    """A receipt of an event that counts as published at once. May be awaited, also twice: `await (await add(…))`."""

    __slots__ = ()

    def __init__(self, event_id: str, *, created: bool) -> None:
        self.id = event_id
        self.created = created

    def wait(self, timeout: float | None = None, *, connection: Handle = None) -> Receipt:
        return self

    async def wait_async(self, timeout: float | None = None, *, connection: Handle = None) -> Receipt:
        return self

    def __await__(self) -> Generator[Any, None, Receipt]:
        return self.wait_async().__await__()


class RecordedReceipts(list[RecordedReceipt]):
    """The receipts of `add_many`. May be awaited, for services that use asyncio, in tests without a connection."""

    def __await__(self) -> Generator[Any, None, RecordedReceipts]:
        return self._itself().__await__()

    async def _itself(self) -> RecordedReceipts:
        return self
