"""Debezium's offsets as they are on the offsets topic of Kafka Connect."""

from __future__ import annotations

import base64
import json
from typing import Any

import bson
import pytest

from tailrace.config.debezium_keys import MONGO, POSTGRES
from tailrace.debezium_import.connector_config import ConnectorConfig
from tailrace.debezium_import.offset import MongoOffset, PostgresOffset, choose_offset, parse_offset, require_topic
from tailrace.errors import ConfigError, DebeziumOffsetUnfit
from tailrace.positions.mongo import ClusterTime

# As Debezium 3.6 writes it.
STORED = {"lsn_proc": 25664128, "messageType": "INSERT", "lsn_commit": 25663728, "lsn": 25664128, "txId": 738}
# As Debezium 3.6 writes it: BSON in base64.
TOKEN = "826AFE15AC0000009D2B022C0100"
STORED_TOKEN = base64.b64encode(bson.encode({"_data": TOKEN})).decode()
TIME = {"sec": 0x6AFE15AC, "ord": 0x9D}
SHOP = ConnectorConfig("shop", {"connector.class": POSTGRES, "topic.prefix": "dbz"})
USERS = ConnectorConfig("users", {"connector.class": MONGO, "topic.prefix": "dbz"})


def record(name: str, partition: dict[str, str], value: dict[str, Any] | None) -> tuple[bytes, bytes | None]:
    return json.dumps([name, partition]).encode(), None if value is None else json.dumps(value).encode()


def test_a_transaction_that_is_not_known_to_be_complete() -> None:
    found = parse_offset(STORED, is_mongo=False)
    assert found == PostgresOffset(25664128, 25663728, 738)
    assert found.covers(25663727, 1, 1 << 40, is_first=False)  # an earlier transaction
    assert found.covers(25664400, 738, 25664128, is_first=True)  # the same one, up to the last change
    assert not found.covers(25664400, 738, 25664128, is_first=False)  # rows of a COPY have the same LSN
    assert not found.covers(25664400, 738, 25664129, is_first=True)
    assert not found.covers(25664300, 737, 25664000, is_first=True)  # another one that began earlier and ended later


def test_without_the_id_of_a_transaction_only_complete_ones_count() -> None:
    found = parse_offset({"lsn": 100, "lsn_commit": 50}, is_mongo=False)
    assert isinstance(found, PostgresOffset)
    assert not found.covers(60, 0, 55, is_first=True)
    assert str(found) == "0/32, and changes up to 0/64"


@pytest.mark.parametrize("token", [STORED_TOKEN, TOKEN, json.dumps({"_data": TOKEN})])
def test_a_resume_token(token: str) -> None:
    found = parse_offset({"resume_token": token, **TIME}, is_mongo=True)
    assert found == MongoOffset(TOKEN, ClusterTime(0x6AFE15AC, 0x9D))
    assert found.covers(TOKEN)
    assert not found.covers(f"{TOKEN}00")


@pytest.mark.parametrize(
    "stored",
    [
        {"resume_token": STORED_TOKEN, "sec": 17, "ord": 2},  # of another time
        {"resume_token": "gwAAAAJf", **TIME},
        {"resume_token": "not base64", **TIME},
        {"resume_token": "", **TIME},
        {"resume_token": TOKEN.lower(), **TIME},
        {"resume_token": None, **TIME},
        TIME,
    ],
)
def test_an_unusable_token(stored: dict[str, Any]) -> None:
    with pytest.raises(DebeziumOffsetUnfit):
        parse_offset(stored, is_mongo=True)


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"lsn": None},
        {"lsn": -1},
        {"lsn": 1 << 65},
        {"lsn": "x"},
        {**STORED, "snapshot": "INITIAL", "last_snapshot_record": False},
        {**STORED, "snapshot": True},
    ],
)
def test_an_unusable_offset(stored: dict[str, Any]) -> None:
    with pytest.raises(DebeziumOffsetUnfit):
        parse_offset(stored, is_mongo=False)


@pytest.mark.parametrize("more", [{"snapshot": "INITIAL", "last_snapshot_record": True}, {"snapshot_completed": True}])
def test_a_snapshot_that_is_complete(more: dict[str, Any]) -> None:
    assert parse_offset({**STORED, **more}, is_mongo=False)


def test_the_last_offset_of_the_connector_counts() -> None:
    records = [
        (None, b"{}"),
        (b"no json", b"{}"),
        record("other", {"server": "dbz"}, {"lsn": 1}),
        record("shop", {"server": "dbz"}, {"lsn": 5}),
        record("shop", {"server": "another"}, {"lsn": 6}),
        record("shop", {"server": "dbz"}, STORED),
    ]
    assert choose_offset(records, SHOP, "offsets") == PostgresOffset(25664128, 25663728, 738)
    with pytest.raises(DebeziumOffsetUnfit, match="no offset of the connector shop") as missing:
        choose_offset([*records, record("shop", {"server": "dbz"}, None)], SHOP, "offsets")
    assert "offsets of: other, shop" in missing.value.why


def test_a_connector_with_several_offsets() -> None:
    records = [record("users", {"server_id": "dbz", "rs": name}, {"sec": 1, "ord": 1}) for name in ("rs0", "rs1")]
    with pytest.raises(DebeziumOffsetUnfit, match="2 offsets"):
        choose_offset(records, USERS, "offsets")


def test_the_topic_of_offsets() -> None:
    assert require_topic(SHOP, "given") == "given"
    own = ConnectorConfig("shop", {**SHOP.keys, "offsets.storage.topic": "own"})
    assert require_topic(own, "") == "own"
    with pytest.raises(ConfigError, match="is not known"):
        require_topic(SHOP, "")
