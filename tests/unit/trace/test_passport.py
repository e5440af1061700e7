"""What the parts of a passport mean: the state of an event, ids of rows, addresses of stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.dlq.dead_letter import DeadLetter, DeadLetterId
from tailrace.dlq.parked_keys import ParkedKey
from tailrace.dlq.resolutions import Resolution
from tailrace.errors import ConfigError
from tailrace.event import Row
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.trace.kafka_search import FoundParking, FoundRecord
from tailrace.trace.outbox_row import FoundRow, _canonical, _condition
from tailrace.trace.passport import Passport, Validation, passport_json
from tailrace.trace.projections import has_passed, parse_store
from tailrace.trace.trace import require_id

LOG = LogIdentity("1", 1, "db", "slot", "public.outbox", "publication")
RECORD = FoundRecord("orders", 1, 7, 1000, b"k", b'{"secret": 1}', "T", "0/100:1", "", "", False, "")
LETTER = DeadLetter(DeadLetterId(0, 4), 1000, b"k", b'{"secret": 2}', [("id", "1"), ("tailrace.position", "0/100:1")])
ROW = FoundRow(Row((), (), "", 1000), "public.outbox", 1000, "42", {}, 0x200)


def at(lsn: int, at_ms: int = 2000) -> LsnPosition:
    return LsnPosition(LOG, lsn, at_ms)


def passport(**parts: Any) -> Passport:
    return Passport("1", "orders", **parts)


@pytest.mark.parametrize(
    ("parts", "state"),
    [
        ({"row": ROW}, "not published yet"),
        ({"row": ROW, "stored": at(0x100)}, "not published yet"),
        ({"row": ROW, "stored": at(0x200)}, "not on Kafka"),
        ({"row": ROW, "stored": at(0x100, 1000 + 4_000_000)}, "not on Kafka"),
        ({"row": ROW, "records": [RECORD]}, "published"),
        ({"dead_letters": [(LETTER, None)]}, "dead-lettered"),
        ({"dead_letters": [(LETTER, Resolution("discarded", 1, "ann", "test"))]}, "discarded"),
        ({"dead_letters": [(LETTER, None)], "records": [RECORD]}, "published"),
        ({"parking": FoundParking(("order", b"k"), ParkedKey(1, "p"), True, "p")}, "parked"),
        ({"parking": FoundParking(("order", b"k"), ParkedKey(1, "p"), False, "p"), "row": ROW}, "waiting"),
    ],
)
def test_the_state_of_an_event(parts: dict[str, Any], state: str) -> None:
    assert passport(**parts).state == state


def test_whether_the_pipeline_has_passed_it() -> None:
    assert passport(records=[RECORD], stored=at(0x101)).is_passed is True
    assert passport(records=[RECORD], stored=at(0x99)).is_passed is False
    assert passport(records=[RECORD]).is_passed is None
    assert passport(records=[replace(RECORD, position="of another log")], stored=at(0x101)).is_passed is None


def test_payloads_are_shown_only_on_request() -> None:
    found = passport(
        row=ROW,
        records=[RECORD],
        dead_letters=[(LETTER, None)],
        validation=Validation(False, reason="r", explanation="secret 3", remedy="Fix it."),
    )
    hidden = passport_json(found, payload=False, value_json=bytes.decode)
    shown = passport_json(found, payload=True, value_json=bytes.decode)
    assert "secret" not in str(hidden)
    assert str(shown).count("secret") == 3


@pytest.mark.parametrize(
    ("kind", "event_id", "condition"),
    [
        ("uuid", "6D6A3C1E-0000-4000-8000-000000000000", '"id" = $1::uuid'),
        ("uuid", "no uuid", None),
        ("bigint", "42", '"id" = $1::bigint'),
        ("integer", str(2**31), None),
        ("bigint", "4²", None),
        ("text", "'; --", '"id" = $1'),
        ("ulid", "x", '"id"::text = $1'),
    ],
)
def test_the_condition_for_an_id_fits_its_type(kind: str, event_id: str, condition: str | None) -> None:
    assert _condition("id", kind, event_id) == condition


def test_ids_are_written_as_the_database_does() -> None:
    assert _canonical("uuid", "6D6A3C1E00004000800000000000000A") == "6d6a3c1e-0000-4000-8000-00000000000a"
    assert _canonical("text", "A") == "A"


@pytest.mark.parametrize("event_id", ["", "a\0", "x" * 1001, "\ud800"])
def test_what_cannot_be_an_id(event_id: str) -> None:
    with pytest.raises(ConfigError):
        require_id(event_id)


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("postgresql://u:p@db:5432/shop#read", "db/shop read", "read"),
        ("postgres://db/shop", "db/shop", ""),
        ("host=db dbname=shop password=p#read", "db/shop read", "read"),
        ("mongodb://u:p@db:27017/shop?replicaSet=rs0", "db/shop", "shop"),
    ],
)
def test_addresses_of_stores(text: str, name: str, place: str) -> None:
    found = parse_store(text)
    assert (found.name, found.place) == (name, place)
    assert found.is_mongo == text.startswith("mongodb")


@pytest.mark.parametrize("text", ["/etc/passwd", "mongodb://db", "http://db/x", "postgresql://[x/", "host='"])
def test_what_is_no_address_of_a_store(text: str) -> None:
    with pytest.raises(ConfigError, match="neither an app nor the address"):
        parse_store(text)


def test_a_projection_has_passed_the_first_record() -> None:
    later = replace(RECORD, offset=9)
    assert has_passed([("orders", 1, 8)], [RECORD, later])
    assert not has_passed([("orders", 1, 7)], [RECORD, later])
    assert not has_passed([("orders", 0, 99)], [RECORD])
