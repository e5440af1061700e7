"""Time windows, and the age of transactions of which only 32 bits of the id are known."""

from __future__ import annotations

import pytest

from tailrace.verify.backend import Window, precedes


def test_a_window_includes_its_start_and_excludes_its_end() -> None:
    assert [at for at in range(5) if at in Window(1, 3)] == [1, 2]
    assert [at for at in range(5) if at in Window(None, 3)] == [0, 1, 2]
    assert [at for at in range(5) if at in Window(3, None)] == [3, 4]
    assert 0 in Window()
    assert None not in Window()


@pytest.mark.parametrize(
    ("transaction", "other", "older"),
    [
        (700, 701, True),
        (701, 701, False),
        (702, 701, False),
        (2**32 - 5, 10, True),  # the numbers began again in between
        (10, 2**32 - 5, False),
        (1, 2**32 - 5, True),  # bootstrap
        (2, 3, True),  # frozen
    ],
)
def test_which_transaction_is_older(transaction: int, other: int, *, older: bool) -> None:
    assert precedes(transaction, other) is older
