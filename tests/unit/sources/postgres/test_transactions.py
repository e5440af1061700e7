"""Tests of transactions.py: rows and positions from messages. Cut, crashed and resumed, every row comes once."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import LogDiverged, ProtocolError, PublicationBroken, UnexpectedChange
from tailrace.positions.postgres import Cut, LastTransaction, LogIdentity, LsnPosition, format_lsn
from tailrace.sources.postgres.resume_check import expected_transactions
from tailrace.sources.postgres.transactions import DELETES_KEPT, Transactions

LOG = LogIdentity("7", 1, "shop", "s", "public.outbox", "1/2/3")
OUTBOX, OTHER = 16384, 16400
COMMIT_SIZE = 48
MICROS = 1_000_000
LAST = LastTransaction(200, 7, MICROS)


def begin(lsn: int, at: int = MICROS, xid: int = 7) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, at, xid)


def commit(lsn: int, end: int | None = None, at: int = MICROS) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, lsn, lsn + COMMIT_SIZE if end is None else end, at)


def relation(
    oid: int = OUTBOX, name: str = "outbox", schema: str = "public", columns: Sequence[str] = ("id",)
) -> bytes:
    head = b"R" + struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0d"
    body = b"".join(b"\0" + column.encode() + b"\0" + struct.pack(">Ii", 25, -1) for column in columns)
    return head + struct.pack(">H", len(columns)) + body


def insert(value: str, oid: int = OUTBOX) -> bytes:
    text = value.encode()
    return b"I" + struct.pack(">I", oid) + b"N" + struct.pack(">H", 1) + b"t" + struct.pack(">I", len(text)) + text


def delete(oid: int = OUTBOX, value: str = "x") -> bytes:
    text = value.encode()
    return b"D" + struct.pack(">I", oid) + b"K" + struct.pack(">H", 1) + b"t" + struct.pack(">I", len(text)) + text


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(">IB", len(oids), 0) + b"".join(struct.pack(">I", oid) for oid in oids)


def message() -> bytes:
    return b"M" + struct.pack(">BQ", 0, 5) + b"p\0" + struct.pack(">I", 1) + b"x"


def following(
    start: LsnPosition | None = None,
    *,
    halt: bool = False,
    relation_id: int = 0,
    moved_by: str | None = None,
    adopted: bool = False,
) -> Transactions:
    position = start or LsnPosition(LOG, 100, 5)
    return Transactions(
        position,
        schema="public",
        table="outbox",
        halt_on_change=halt,
        relation_id=relation_id,
        moved_by=moved_by,
        adopted=adopted,
    )


def feed(transactions: Transactions, *messages: bytes) -> None:
    for body in messages:
        transactions.feed(b"w" * 25 + body, 25)


def ids(transactions: Transactions) -> list[str]:
    return [(row.values[0] or b"").decode() for row in transactions.rows]


def test_a_transaction_moves_the_position_to_its_end_lsn() -> None:
    transactions = following()
    feed(transactions, begin(200), relation(), insert("a"), insert("b"))
    assert transactions.open
    feed(transactions, commit(200, 248, at=3 * MICROS))
    assert ids(transactions) == ["a", "b"]
    assert not transactions.open
    assert transactions.position == LsnPosition(LOG, 248, 946_684_803_000, last=LAST)
    assert [row.position for row in transactions.rows] == ["0/C8:1", "0/C8:2"]
    assert {row.committed_ms for row in transactions.rows} == {946_684_801_000}


def test_inside_a_transaction_the_position_is_the_end_before_it_and_a_cut() -> None:
    transactions = following()
    feed(transactions, begin(200), relation())
    assert transactions.position == LsnPosition(LOG, 100, 5)
    feed(transactions, insert("a"), insert("b"))
    assert transactions.position == LsnPosition(LOG, 100, 5, Cut(200, 2), last=LAST)


def test_rows_already_published_are_skipped_by_ordinal() -> None:
    start = LsnPosition(LOG, 100, 5, Cut(200, 2))
    transactions = following(start)
    feed(transactions, begin(200), relation(), insert("a"))
    assert transactions.position == start, "half skipped is still where it was"
    feed(transactions, insert("b"), insert("c"))
    assert ids(transactions) == ["c"]
    assert transactions.position == LsnPosition(LOG, 100, 5, Cut(200, 3), last=LAST)
    feed(transactions, commit(200), begin(300), insert("d"), commit(300))
    assert ids(transactions) == ["c", "d"]
    assert transactions.position.cut is None
    assert transactions.position.lsn == 348


def test_a_transaction_that_was_published_except_for_its_commit() -> None:
    transactions = following(LsnPosition(LOG, 100, 5, Cut(200, 2)))
    feed(transactions, begin(200), relation(), insert("a"), insert("b"), commit(200))
    assert ids(transactions) == []
    assert transactions.position.cut is None
    assert transactions.position.lsn == 248


def test_rows_of_other_tables_are_neither_returned_nor_counted() -> None:
    transactions = following(LsnPosition(LOG, 100, 5, Cut(200, 1)))
    feed(transactions, begin(200), relation(OTHER, "orders"), insert("x", OTHER), relation(), insert("a"))
    feed(transactions, insert("y", OTHER), insert("b"))
    assert ids(transactions) == ["b"]


def test_a_table_of_the_same_name_in_another_schema_is_another_table() -> None:
    transactions = following()
    feed(transactions, begin(200), relation(schema="archive"), insert("a"), commit(200))
    assert ids(transactions) == []


def test_logical_messages_are_no_events() -> None:
    transactions = following()
    feed(transactions, message(), begin(200), relation(), message(), insert("a"), commit(200))
    assert ids(transactions) == ["a"]


def test_a_keepalive_moves_an_idle_position_and_never_backwards() -> None:
    transactions = following()
    assert transactions.idle(150, 9)
    assert transactions.position == LsnPosition(LOG, 150, 9)
    assert not transactions.idle(150, 10)
    assert not transactions.idle(149, 10)
    assert transactions.position == LsnPosition(LOG, 150, 9)


def test_a_keepalive_inside_a_transaction_is_ignored() -> None:
    transactions = following()
    feed(transactions, begin(200), relation())
    assert not transactions.idle(190, 9)
    assert transactions.position.lsn == 100


def test_a_keepalive_before_the_rest_of_a_cut_transaction_is_ignored() -> None:
    start = LsnPosition(LOG, 100, 5, Cut(200, 2))
    transactions = following(start)
    assert not transactions.idle(150, 9)
    assert transactions.position == start


def resumed(start: LsnPosition, confirmed: int = 0, until: LsnPosition | None = None) -> Transactions:
    transactions = following(start)
    transactions.expect(expected_transactions(start, until, confirmed))
    return transactions


STORED = LsnPosition(LOG, 300, 5, last=LAST)


def test_the_last_transaction_is_recognised_and_its_rows_are_skipped() -> None:
    transactions = resumed(STORED)
    assert not transactions.idle(199, 9)
    feed(transactions, begin(200), relation(), insert("a"), delete())
    assert transactions.position == STORED
    feed(transactions, commit(200))
    assert not transactions.arrived, "what stands between it and the stored position is not known yet"
    feed(transactions, begin(300, xid=8), insert("b"), commit(300))
    assert transactions.arrived
    assert ids(transactions) == ["b"]
    assert transactions.position.last == LastTransaction(300, 8, MICROS)


@pytest.mark.parametrize("start", [STORED, LsnPosition(LOG, 150, 5, Cut(200, 1), last=LAST)], ids=["whole", "cut"])
@pytest.mark.parametrize(
    "other",
    [begin(200, xid=8), begin(200, at=MICROS + 1), begin(201), begin(350), 201, 350],
    ids=["xid", "time", "place", "behind", "passed", "passed by far"],
)
def test_another_history_is_refused(start: LsnPosition, other: bytes | int) -> None:
    transactions = resumed(start)
    with pytest.raises(LogDiverged, match="transaction 7, committed at 0/C8"):
        transactions.idle(other, 9) if isinstance(other, int) else feed(transactions, other)
    assert not transactions.arrived


@pytest.mark.parametrize("start", [STORED, LsnPosition(LOG, 300, 5, last=LastTransaction(200))], ids=["read", "new"])
def test_rows_in_a_range_where_none_were_read_are_refused(start: LsnPosition) -> None:
    """The slot guarantees the log up to its confirmed LSN, not behind it."""
    transactions = resumed(start, confirmed=250)
    feed(transactions, begin(260), relation(OTHER, "orders"), insert("x", OTHER), commit(260))
    with pytest.raises(LogDiverged):
        feed(transactions, begin(280), relation(), insert("a"), commit(280))
    assert not transactions.arrived
    assert ids(transactions) == []


def test_a_rewound_pipeline_checks_the_last_transaction_it_had_read() -> None:
    until = LsnPosition(LOG, 500, 5, last=LastTransaction(400, 9, MICROS))
    transactions = resumed(LsnPosition(LOG, 150, 5), until=until)
    assert transactions.arrived
    feed(transactions, begin(200), relation(), insert("a"), commit(200))
    feed(transactions, begin(400, xid=9), insert("b"), commit(400))
    assert ids(transactions) == ["a", "b"], "they are to come again"
    transactions = resumed(LsnPosition(LOG, 150, 5), until=until)
    with pytest.raises(LogDiverged):
        feed(transactions, begin(401, xid=9))


def test_a_keepalive_behind_pending_rows_is_ignored() -> None:
    """Such a position would be stored without a check of the publication; see `Source.settle`."""
    transactions = following()
    feed(transactions, begin(200), relation(), insert("a"), commit(200))
    assert not transactions.idle(500, 9)
    assert transactions.position.lsn == 248
    transactions.rows = []
    assert transactions.idle(500, 9)


@pytest.mark.parametrize(
    ("start", "messages"),
    [
        (None, [begin(200), begin(300)]),
        (None, [begin(200), commit(201)]),
        (None, [commit(200)]),
        (Cut(200, 2), [begin(201)]),
        (Cut(200, 2), [begin(200), relation(), insert("a"), commit(200)]),
    ],
    ids=["begin in begin", "commit of another", "commit of none", "the cut one is missing", "the cut one shrank"],
)
def test_messages_out_of_order_are_refused(start: Cut | None, messages: list[bytes]) -> None:
    transactions = following(LsnPosition(LOG, 100, 5, start))
    with pytest.raises(ProtocolError):
        feed(transactions, *messages)


def test_an_adopted_log_need_not_have_the_transaction_that_was_published_in_part() -> None:
    """A restored database lacks it, and would never send it."""
    cut = LsnPosition(LOG, 100, 5, Cut(200, 2))
    transactions = following(cut, adopted=True)
    feed(transactions, begin(300), relation(), insert("a"), commit(300))
    assert ids(transactions) == ["a"]
    assert (transactions.position.cut, transactions.position.lsn) == (None, 348)
    transactions = following(cut, adopted=True)
    assert not transactions.idle(200, 6), "it may still come"
    assert transactions.idle(201, 6)
    assert transactions.position.cut is None
    transactions = following(cut, adopted=True)
    feed(transactions, begin(200), relation(), insert("a"), insert("b"), insert("c"), commit(200))
    assert ids(transactions) == ["c"], "it is there: what was published of it is skipped"


def test_a_new_relation_message_brings_new_columns() -> None:
    transactions = following()
    feed(transactions, begin(200), relation(), insert("a"))
    assert transactions.relations_changed
    assert not transactions.columns_changed, "the first columns follow no others"
    feed(transactions, relation(), insert("b"))
    assert not transactions.columns_changed
    assert transactions.rows[0].columns is transactions.rows[1].columns, "one plan serves both"
    feed(transactions, relation(columns=("key",)))
    assert transactions.columns_changed
    feed(transactions, insert("c"))
    assert transactions.rows[2].columns[0].name == "key"
    assert transactions.rows[0].columns[0].name == "id"


def test_any_relation_message_triggers_a_check_of_the_publication() -> None:
    """Also that of another table: the server sends it again when the publication was altered."""
    transactions = following()
    feed(transactions, begin(200), relation(OTHER, "orders"))
    assert transactions.relations_changed


def test_rows_of_the_renamed_table_are_read() -> None:
    transactions = following(relation_id=OUTBOX)
    feed(transactions, begin(200), relation(name="renamed"), insert("a"), commit(200))
    feed(transactions, begin(300), relation(), insert("b"), commit(300))
    assert ids(transactions) == ["a", "b"]


def test_an_older_table_of_this_name_that_is_renamed_and_written_to_stops_the_source() -> None:
    transactions = following(relation_id=OTHER)
    feed(transactions, begin(200), relation(OUTBOX), insert("a"), commit(200))
    with pytest.raises(PublicationBroken):
        feed(transactions, begin(300), relation(OUTBOX, "outbox_old"))


@pytest.mark.parametrize("change", [delete(), truncate(OTHER, OUTBOX)])
def test_changes_halt_only_by_policy_and_only_of_the_outbox(change: bytes) -> None:
    quiet = following()
    feed(quiet, begin(200), relation(), change, commit(200))
    assert ids(quiet) == []
    strict = following(halt=True)
    feed(strict, begin(200), relation(), delete(OTHER), truncate(OTHER))
    with pytest.raises(UnexpectedChange):
        feed(strict, change)


class Written(NamedTuple):
    """A transaction of the property test; each outbox row is followed by so many rows of another table."""

    rows: list[int]
    gap: int


def served(log: list[tuple[int, Written]], start: int) -> Iterator[bytes | int]:
    """Yields what a walsender sends from `start` on: messages, and keepalives as numbers, also inside transactions."""
    relations_sent = False
    for lsn, written in log:
        if lsn < start:
            continue  # the server decides by the start of the commit record
        yield lsn - 1
        yield begin(lsn)
        for ordinal, others in enumerate(written.rows):
            if not relations_sent:
                yield relation()
                yield relation(OTHER, "orders")
                relations_sent = True
            yield insert(f"{format_lsn(lsn)}:{ordinal + 1}")
            yield lsn - 1
            for _ in range(others):
                yield insert("x", OTHER)
        yield commit(lsn)
        yield lsn + COMMIT_SIZE + written.gap // 2


written = st.builds(Written, st.lists(st.integers(0, 2), max_size=6), st.integers(0, 40))
reads = st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=40)


@given(st.lists(written, max_size=8), reads)
def test_cut_and_resumed_anywhere_every_row_comes_once_and_in_order(
    history: list[Written], reads: list[tuple[int, bool]]
) -> None:
    """Each read takes at most so many rows; then they are published, or the process dies and resumes.
    Published positions are confirmed or not.
    """
    log: list[tuple[int, Written]] = []
    lsn = 200
    for transaction in history:
        log.append((lsn, transaction))
        lsn += COMMIT_SIZE + transaction.gap
    wanted = [f"{format_lsn(at)}:{n + 1}" for at, written in log for n in range(len(written.rows))]
    stored = LsnPosition(LOG, 150, 0)
    published: list[str] = []
    transactions, stream = following(stored), served(log, stored.lsn)
    confirmed = stored.lsn
    # After any sequence of reads, the last ones take all that is left.
    for limit, crash in [*reads, *[(5, False)] * (len(wanted) + 1), (1000, False)]:
        transactions.rows = []
        for item in stream:
            if isinstance(item, int):
                transactions.idle(item, 1)
            else:
                feed(transactions, item)
            if len(transactions.rows) >= limit:
                break
        if crash:
            transactions, stream = resumed(stored, confirmed), served(log, max(stored.resume_lsn, confirmed))
            continue
        published += [row.position for row in transactions.rows]
        assert ids(transactions) == [row.position for row in transactions.rows]
        assert transactions.position.progress >= stored.progress
        stored = LsnPosition.from_json(transactions.position.to_json())
        if limit % 2 and transactions.arrived:
            confirmed = stored.lsn
    assert published == wanted
    assert stored.cut is None


@given(st.lists(written, max_size=6), st.lists(written, max_size=6), st.lists(written, max_size=6), st.data())
def test_rows_of_a_restored_log_are_never_skipped(
    shared: list[Written], lost: list[Written], new: list[Written], data: st.DataObject
) -> None:
    """Read and confirmed up to any position, restored, and written to again: refused, or everything is published."""

    def follow(begins: int, history: list[Written], first_xid: int) -> tuple[list[tuple[int, Written]], int]:
        log = []
        for transaction in history:
            log.append((begins, transaction))
            begins += COMMIT_SIZE + transaction.gap + first_xid % 7
        return log, begins

    before, fork = follow(200, shared, 0)
    old, old_end = follow(fork, lost, 1)
    transactions = following(LsnPosition(LOG, 150, 0, last=LastTransaction(150)))
    for item in served([*before, *old], 150):
        transactions.rows = []
        transactions.idle(item, 1) if isinstance(item, int) else feed(transactions, item)
    transactions.rows = []
    transactions.idle(old_end, 1)
    stored = transactions.position
    confirmed = data.draw(st.sampled_from([150, *(at for at, _ in before), fork]))
    # Other transactions have other xids; the sample has none, so their positions differ.
    rewritten, end = follow(fork + data.draw(st.integers(1, 9)), new, 2)
    if {at for at, _ in rewritten} & {at for at, _ in old} or end < stored.lsn:
        return
    again = resumed(stored, confirmed)
    try:
        for item in [*served([*before, *rewritten], max(stored.resume_lsn, confirmed)), end + 1]:
            again.idle(item, 1) if isinstance(item, int) else feed(again, item)
    except LogDiverged:
        assert not again.arrived
        return
    expected_rows = [f"{format_lsn(at)}:{n + 1}" for at, each in rewritten for n in range(len(each.rows))]
    assert ids(again) == expected_rows


def test_a_frame_without_a_message_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="truncated"):
        following().feed(b"w" * 25, 25)


def test_a_row_that_moves_between_partitions_is_not_an_event() -> None:
    """Deleted and inserted in one transaction. The ordinals of the other rows do not count it."""
    start = LsnPosition(LOG, 100, 5, Cut(200, 1))
    for begins, wanted in ((None, ["new", "b", "a"]), (start, ["b", "a"])):
        transactions = following(begins, halt=True, moved_by="id")
        feed(transactions, begin(200), relation(), relation(OTHER, "other"))
        feed(transactions, delete(value="a"), delete(OTHER, "b"), insert("a"), insert("new"), insert("b"), commit(200))
        # In another transaction, the row is new.
        feed(transactions, begin(300), delete(value="a"), commit(300), begin(400), insert("a"), commit(400))
        assert ids(transactions) == wanted


def test_only_few_deleted_rows_are_kept_in_memory() -> None:
    """A purge of millions needs no memory; a move is always recognised, because its insert follows immediately."""
    transactions = following(moved_by="id")
    feed(transactions, begin(200), relation())
    for number in range(DELETES_KEPT + 500):
        feed(transactions, delete(value=f"purged {number}"))
        feed(transactions, delete(value=f"moved {number}"), insert(f"moved {number}"))
    assert DELETES_KEPT - 2 < len(transactions._deleted) <= DELETES_KEPT
    feed(transactions, insert("purged 0"), insert(f"purged {DELETES_KEPT}"))
    assert ids(transactions) == ["purged 0"]


def test_a_deleted_row_without_its_id_is_refused() -> None:
    """As with a replica identity without it: a move would look like a new row."""
    transactions = following(moved_by="id")
    feed(transactions, begin(200), relation(columns=["other"]))
    with pytest.raises(PublicationBroken, match="was not sent"):
        feed(transactions, delete())
