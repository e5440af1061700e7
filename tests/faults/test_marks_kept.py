"""Row marks in the cases where a published row could stay without its mark, or a row get a mark that is not true."""

from __future__ import annotations

import pytest

from faults.test_marks_rows import all_marked, marked, row  # noqa: F401 - a fixture
from faults.test_redrive import VALID
from helpers.shop import Shop
from tailrace.testkit.stack import wait_until


@pytest.mark.parametrize("marks", ["watermark", "rows"])
def test_marks_with_a_sequence_check(marked: Shop, marks: str) -> None:  # noqa: F811
    """The records of the numbers are in the batches of the events, and are no events."""
    shop = marked
    shop.configure(marks=marks, rules={"sequence": {"number": "payload#/revision"}})
    connector = shop.start()
    event = shop.insert(VALID)
    wait_until(lambda: [seen.id for seen in shop.published()] == [event], 60, what="the event")
    if marks == "rows":
        all_marked(shop)
    assert connector.stop() == 0, connector.log


def test_marks_of_rows_with_an_id_of_fixed_length(marked: Shop) -> None:  # noqa: F811
    shop = marked
    shop.execute("ALTER TABLE outbox ALTER id TYPE char(36)")
    shop.start()
    event = shop.insert(VALID)
    wait_until(lambda: row(shop, event)[0], 20, what="the mark")
