"""Which slots can be taken over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.debezium_import.postgres_log import _signed, _usable
from tailrace.errors import SlotMissing, WrongLog
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.resume_check import SlotState

OPTIONS = PostgresOptions("", "public.outbox", slot="debezium", publication="dbz_publication")
SLOT = SlotState("debezium", "pgoutput", "shop", None, 100, "reserved", None, 0, None)


def test_a_slot_of_pgoutput() -> None:
    assert _usable(SLOT, OPTIONS, "shop") is SLOT


@pytest.mark.parametrize(
    ("slot", "what"),
    [
        (replace(SLOT, plugin="decoderbufs"), "plugin decoderbufs"),
        (replace(SLOT, database="other"), "database other"),
        (replace(SLOT, wal_status="lost"), "invalidated"),
        (replace(SLOT, invalidation="idle_timeout"), "idle_timeout"),
    ],
)
def test_an_unusable_slot(slot: SlotState, what: str) -> None:
    with pytest.raises(WrongLog, match=what):
        _usable(slot, OPTIONS, "shop")
    with pytest.raises(SlotMissing, match="no slot debezium"):
        _usable(None, OPTIONS, "shop")


def test_distances_between_transaction_ids_wrap_around() -> None:
    assert _signed(-3) == -3
    assert _signed((5 - ((1 << 32) - 2)) % (1 << 32)) == 7
    assert _signed(-((1 << 33) + 1)) == -1
