"""The selection of events, and the end of the source of a replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tailrace.errors import Reason, Rejected
from tailrace.event import Chunk, OutboxEvent, Route, Row
from tailrace.positions.base import Position
from tailrace.positions.postgres import Cut, LogIdentity, LsnPosition
from tailrace.replay.plan import Selection, row_selector
from tailrace.replay.plan_source import SelectedSource

LOG = LogIdentity("1", 1, "shop", "slot", "public.outbox", "p")


def at(lsn: int, cut: Cut | None = None) -> LsnPosition:
    return LsnPosition(LOG, lsn, 0, cut)


def row(lsn: int, number: int = 1, *, committed_ms: int = 50, value: bytes = b"OrderPlaced") -> Row:
    return Row((), (value,), f"0/{lsn:X}:{number}", committed_ms)


class Layout:
    """A row whose only value is its type and its id; an empty one cannot be decoded."""

    def read(self, row: Row) -> OutboxEvent:
        kind = (row.values[0] or b"").decode()
        if not kind:
            raise Rejected(Reason.POISON_MESSAGE, "no type")
        return OutboxEvent(f"id-{kind}", kind, "order", b"key-7", None, None, row.position, row.committed_ms, [])


def route(event: OutboxEvent) -> Route:
    if event.type == "Lost":
        raise Rejected(Reason.PERMANENT_FAILURE, "no rule takes it")
    return Route("shop.orders")


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        (Selection(), True),
        (Selection(types=("Order*",)), True),
        (Selection(types=("order*", "Paid")), False),
        (Selection(types=("Paid", "OrderPlaced"), keys=("key-?",)), True),
        (Selection(keys=("key",)), False),
        (Selection(topics=("shop.*",)), True),
        (Selection(topics=("stock",)), False),
        (Selection(ids=("id-OrderPlaced", "other")), True),
        (Selection(ids=("id-Order*",)), False),
        (Selection(since_ms=50, until_ms=51), True),
        (Selection(since_ms=51), False),
        (Selection(until_ms=50), False),
        (Selection(types=("OrderPlaced",), until_ms=50), False),
    ],
)
def test_each_condition_must_hold(selection: Selection, wanted: bool) -> None:
    assert row_selector(selection, Layout(), route)(row(0x10)) is wanted


def test_rows_without_event_or_topic_are_selected_only_without_conditions() -> None:
    unreadable, lost = row(0x10, value=b""), row(0x10, value=b"Lost")
    assert row_selector(Selection(), Layout(), route)(unreadable)
    assert not row_selector(Selection(types=("*",)), Layout(), route)(unreadable)
    assert row_selector(Selection(types=("L*",)), Layout(), route)(lost)
    assert not row_selector(Selection(topics=("?*",)), Layout(), route)(lost)


def test_a_selection_is_written_and_read() -> None:
    selection = Selection(("A",), ("k*",), (), ("1", "2"), 5, None)
    assert Selection.from_json(selection.to_json()) == selection


class Log:
    """A source that returns these chunks."""

    def __init__(self, *chunks: Chunk) -> None:
        self._chunks = list(chunks)
        self.opened_at: Position | None = None

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        assert stored is not None
        self.opened_at = stored
        return stored

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        return self._chunks.pop(0)

    def settle(self) -> None: ...
    def confirm(self, position: Position) -> None: ...
    def keep_alive(self) -> None: ...
    def passed(self, position: Position) -> str:
        return ""

    def close(self) -> None: ...


def test_the_source_ends_at_its_end() -> None:
    rows = [row(0x10), row(0x20, 1), row(0x20, 2), row(0x30)]
    source = SelectedSource(Log(Chunk(rows, at(0x38), more=True, size=99)), at(0x8), at(0x28), lambda _: True)
    assert source.open(None, lambda _: None) == at(0x8)
    chunk = source.read(10, 1000, 0)
    assert chunk.rows == rows[:3]
    assert (chunk.position, chunk.more) == (at(0x28), False)
    assert source.over
    # From here on it only returns its end, to be stored soon.
    assert source.read(10, 1000, 0) == Chunk([], at(0x28), more=False, urgent=True)


def test_it_may_end_inside_of_a_transaction() -> None:
    end = at(0x18, Cut(0x20, 1))
    source = SelectedSource(Log(Chunk([row(0x20, 1), row(0x20, 2)], at(0x28), more=True)), at(0x8), end, lambda _: True)
    source.open(None, lambda _: None)
    assert [each.position for each in source.read(10, 1000, 0).rows] == ["0/20:1"]


def test_the_source_continues_where_it_was_or_ends_at_once() -> None:
    log = Log(Chunk([row(0x20)], at(0x22), more=False))
    source = SelectedSource(log, at(0x8), at(0x28), lambda _: True)
    source.open(at(0x18), lambda _: None)
    assert log.opened_at == at(0x18)
    assert not source.over
    source = SelectedSource(Log(), at(0x8), at(0x28), lambda _: True)
    source.open(at(0x28), lambda _: None)
    assert source.over


def test_only_selected_rows_come_with_their_original_position() -> None:
    rows = [row(0x10, value=b"12345"), row(0x18, value=b"no")]
    source = SelectedSource(
        Log(Chunk(rows, at(0x20), more=True, size=99)),
        at(0x8),
        at(0x28),
        lambda row: row.values != (b"no",),
        lambda row: row._replace(position="named"),
    )
    source.open(None, lambda _: None)
    chunk = source.read(10, 1000, 0)
    assert chunk == Chunk([rows[0]._replace(position="named")], at(0x20), more=True, size=5)
    assert source.looked_at == 2
