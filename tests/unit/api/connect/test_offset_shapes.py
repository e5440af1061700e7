"""Positions as offsets in Debezium's shapes, and back to points."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.api.connect.answers import ConnectError
from tailrace.api.connect.offset_shapes import offsets_json, wanted_point
from tailrace.positions.mongo import ClusterTime, CollectionRead, StreamIdentity, TokenPosition
from tailrace.positions.postgres import Cut, LogIdentity, LsnPosition, TableRead, format_lsn

LOG = LogIdentity("1", 1, "shop", "slot", "public.outbox", "p")
TOKEN = "8267F1A2B3000000012B0429296E1404"


def body(offset: object, **partition: str) -> dict[str, Any]:
    return {"offsets": [{"partition": partition or {"server": "orders"}, "offset": offset}]}


def test_a_position_of_postgres() -> None:
    position = LsnPosition(LOG, 0x16E9058, 1_700_000_000_000)
    assert offsets_json("orders", position) == {
        "offsets": [
            {
                "partition": {"server": "orders"},
                "offset": {
                    "lsn": 24023128,
                    "lsn_proc": 24023128,
                    "lsn_commit": 24023128,
                    "ts_usec": 1_700_000_000_000_000,
                    "position": "0/16E9058",
                },
            }
        ]
    }
    inside = offsets_json("orders", LsnPosition(LOG, 100, 1, cut=Cut(200, 7)))["offsets"][0]["offset"]
    assert (inside["lsn"], inside["lsn_proc"], inside["rows"]) == (100, 200, 7)
    first = offsets_json("orders", LsnPosition(LOG, 100, 1, table_read=TableRead("1:1:")))["offsets"][0]["offset"]
    assert first["snapshot"] == "INITIAL"


def test_a_position_of_mongodb() -> None:
    log = StreamIdentity("rs0", "shop", {"outbox": "1"}, "p")
    position = TokenPosition(log, {"_data": TOKEN}, ClusterTime(1_700_000_000, 3), 1)
    [entry] = offsets_json("users", position)["offsets"]
    assert entry["partition"] == {"server_id": "users"}
    assert entry["offset"] == {
        "resume_token": TOKEN, "sec": 1_700_000_000, "ord": 3, "position": "1700000000.3"
    }  # fmt: skip
    reading = TokenPosition(log, {"_data": TOKEN}, ClusterTime(1, 1), 1, collection_read=CollectionRead("outbox"))
    assert offsets_json("users", reading)["offsets"][0]["offset"]["snapshot"] == "INITIAL"


def test_no_position() -> None:
    assert offsets_json("orders", None) == {"offsets": []}


@given(st.integers(0, (1 << 64) - 1))
def test_what_was_shown_can_be_sent_back(lsn: int) -> None:
    shown = offsets_json("orders", LsnPosition(LOG, lsn, 1))
    assert wanted_point("orders", "postgres", shown) == format_lsn(lsn)


@pytest.mark.parametrize(
    ("kind", "offset", "point"),
    [
        ("postgres", {"lsn": "0/16E9058"}, "0/16E9058"),
        ("postgres", {"lsn": "24023128"}, "0/16E9058"),
        ("postgres", {"position": "24h"}, "24h"),
        ("postgres", None, "oldest"),
        ("mongo", {"resume_token": TOKEN}, TOKEN),
        ("mongo", {"resume_token": {"_data": TOKEN}}, TOKEN),
        ("mongo", {"sec": 1_700_000_000, "ord": 3}, "1700000000.3"),
        ("mongo", {"sec": 1_700_000_000}, "1700000000.1"),
        ("mongo", {"position": "event:1"}, "event:1"),
    ],
)
def test_points(kind: str, offset: object, point: str) -> None:
    key = {"postgres": "server", "mongo": "server_id"}[kind]
    assert wanted_point("orders", kind, body(offset, **{key: "orders"})) == point


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"offsets": []}, {"offsets": {}}, {"offsets": [1]}, {"offsets": [{}]},
        {"offsets": [*body({"lsn": 1})["offsets"], *body({"lsn": 1})["offsets"]]},
        body({"lsn": 1}, server="other"), body({"lsn": 1}, server_id="orders"),
        body({}), body([]), body("0/1"), body({"lsn": -1}), body({"lsn": 1 << 64}), body({"lsn": True}),
        body({"lsn": 1.5}), body({"lsn": None}), body({"lsn": "x/y"}), body({"lsn": "9" * 30}), body({"position": ""}),
        body({"position": "x" * 501}), body({"position": 5}), body({"resume_token": TOKEN}),
        {"offsets": [{"partition": None, "offset": {"lsn": 1}}]},
    ],
)  # fmt: skip
def test_other_bodies_are_refused_with_400(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConnectError) as refused:
        wanted_point("orders", "postgres", wrong)
    assert refused.value.status == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["offsets", "partition", "offset", "server", "server_id", "lsn", "resume_token", "sec", "ord", "position"]
    ), inner, max_size=4),
)  # fmt: skip


@given(st.dictionaries(st.just("offsets"), json_values), st.sampled_from(["postgres", "mongo"]))
def test_any_body_is_a_point_or_refused(anything: dict[str, Any], kind: str) -> None:
    with suppress(ConnectError):
        assert isinstance(wanted_point("orders", kind, anything), str)
