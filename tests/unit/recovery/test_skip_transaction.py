"""Tests of skip_transaction.py: reading the log leaves no file descriptor open."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import Unavailable
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.recovery.skip_transaction import SurroundingLog
from tailrace.sources.postgres.options import PostgresOptions

LOST = LsnPosition(LogIdentity("7", 1, "shop", "s", "public.outbox", "1/2/3"), 0x100, 0)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_read_that_fails_leaves_no_descriptor_open() -> None:
    log = object.__new__(SurroundingLog)  # without the search for the transaction, which needs a server
    log._options = PostgresOptions("host=127.0.0.1 port=1 dbname=shop", "outbox", "s", "p")
    before = open_descriptors()
    with pytest.raises(Unavailable) as failed:
        log._read(LOST, end=0x200)
    assert open_descriptors() == before, failed
