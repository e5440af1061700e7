"""A record belongs to this pipeline, to another one, or is doubtful."""

from __future__ import annotations

import pytest

from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.recovery.id_index import OwnerRules, RecordOwner, identity
from tailrace.verify.findings import AGAIN, OTHERS
from tailrace.verify.kafka_records import RecordOrigin

LOG = LogIdentity("1", 1, "shop", "slot", "public.outbox", "p")
FURTHEST = LsnPosition(LOG, 0x100, 1)
KNOWN = OwnerRules({b"elsewhere"}, {"orders"}, {"orders", "theirs"}, FURTHEST)
UUID = "6f1c7b1e-9f0e-4a34-8a85-0b8a5c1d2e3f"


def origin(topic: str = "mine", position: bytes = b"0/10:1", pipeline: bytes | None = None) -> RecordOrigin:
    return RecordOrigin(pipeline, topic, b"k", b"OrderPlaced", position)


def test_the_header_decides() -> None:
    assert KNOWN.decide("1", 0, origin("theirs", b"F/F:1", b"shop")) is RecordOwner.OWN
    assert KNOWN.decide("1", OTHERS, origin(pipeline=b"another")) is RecordOwner.OTHERS
    assert KNOWN.decide("1", OTHERS, origin(pipeline=b"elsewhere")) is None


@pytest.mark.parametrize(
    ("event", "topic", "owner"),
    [
        ("1", "mine", RecordOwner.UNSAID),
        (UUID, "orders", RecordOwner.UNSAID),
        ("1", "orders", RecordOwner.DOUBTFUL),
        (UUID, "theirs", RecordOwner.DOUBTFUL),
    ],
)
def test_without_a_header_the_topic_decides(event: str, topic: str, owner: RecordOwner) -> None:
    assert KNOWN.decide(event, 0, origin(topic)) is owner


@pytest.mark.parametrize("position", [b"0/200:1", b"1700000000.1:1", b"nonsense"])
def test_without_a_header_the_position_decides(position: bytes) -> None:
    assert KNOWN.decide(UUID, 0, origin(position=position)) is RecordOwner.DOUBTFUL
    assert KNOWN.decide(UUID, AGAIN, origin(position=position)) is RecordOwner.UNSAID, "it may have lost its place"
    assert OwnerRules().decide(UUID, 0, origin(position=position)) is RecordOwner.UNSAID, "how far it was is not known"


def test_identities() -> None:
    assert identity(b"k", "T") == identity(b"k", b"T")
    assert (
        len({identity(b"k", "T"), identity(None, "T"), identity(b"", "T"), identity(b"k", "U"), identity(b"kT", "")})
        == 5
    )
