"""Writes the valid inputs of the corpus with the project's own code: `python -m fuzz.seeds`, in tests/."""

from __future__ import annotations

import io
import json
import tempfile
from collections import Counter
from pathlib import Path

import bson
import fastavro
import orjson
from bson.timestamp import Timestamp

from fuzz.driver import CORPUS
from fuzz.targets import AVRO, LOG, OPTIONS, STREAM, TARGETS
from simulation import pgoutput_bytes as pg
from tailrace.archive.manifest import ManifestEntry, TimeRange
from tailrace.dlq.dead_letter import DeadLetterId
from tailrace.dlq.parked_keys import (
    GiveUpRequest,
    ParkedKey,
    ParkingRequest,
    answered,
    request_record,
    state_record,
    waiting_record,
)
from tailrace.dlq.record import dead_letter
from tailrace.errors import Reason, Rejected
from tailrace.event import Column, OutboxEvent, Row
from tailrace.positions.base import to_stored
from tailrace.positions.mongo import ClusterTime, CollectionRead, TokenPosition
from tailrace.positions.postgres import Cut, LastTransaction, LsnPosition, TableRead
from tailrace.replay.estimate import Estimate
from tailrace.replay.plan import ReplayPlan, Selection
from tailrace.state.owner_watch import Owner, heartbeat_value, ownership_value
from tailrace.state.rewind_marker import Rewind

ENTITY = ("order", b"k")
MESSAGES = {
    "begin": pg.begin(4096, 7), "commit": pg.commit(4096, 4144), "relation": pg.relation(), "insert": pg.insert("a-1"),
    "delete": b"D" + pg.insert("a-1")[1:5] + b"K" + pg.insert("a-1")[6:], "truncate": b"T\0\0\0\x01\0\0\0\x40\0",
    "message": b"M\x01" + bytes(8) + b"prefix\0\0\0\0\x02{}", "origin": b"O" + bytes(8) + b"name\0",
    "type": b"Y\0\0\0\x19public\0mood\0",
}  # fmt: skip
POSITIONS = {
    "lsn": LsnPosition(LOG, 4144, 5, last=LastTransaction(4096, 7, 9), watched=3),
    "cut": LsnPosition(LOG, 4144, 5, cut=Cut(4200, 3)),
    "table": LsnPosition(LOG, 4144, 5, table_read=TableRead("1:2:", ["a", None], 4)),
    "token": TokenPosition(STREAM, {"_data": "82AB"}, ClusterTime(1, 2), 5, 1),
    "collection": TokenPosition(
        STREAM, {"_data": "82AB"}, ClusterTime(1, 2), 5, collection_read=CollectionRead("c", "{}")
    ),
}
CHANGE = {
    "_id": {"_data": "8265000000000000012B02"}, "operationType": "insert", "clusterTime": Timestamp(1, 2),
    "wallTime": bson.datetime_ms.DatetimeMS(7), "fullDocument": {"_id": "a", "n": 1.5, "list": [1, None]},
}  # fmt: skip
SETTINGS = {
    "pipeline": "orders",
    "source": {"postgres": "postgresql://u@localhost/shop", "table": "public.outbox", "order_by": ["id"]},
    "kafka": {"bootstrap": "localhost:9092", "settings": {"linger.ms": 1}},
    "outbox": {"columns": {"id": "id"}},
}
OURS = {
    "connector.class": "tailrace.PostgresOutbox",
    "source.table": "public.outbox",
    "source.postgres": "postgresql://h/d",
}
DEBEZIUM = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "database.hostname": "db",
    "database.user": "u", "database.dbname": "shop", "table.include.list": "public.outbox", "slot.name": "s",
    "transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.route.topic.replacement": "${routedByValue}.events",
}  # fmt: skip


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def letters() -> dict[str, bytes]:
    row = Row((Column("id", 25), Column("payload", 25)), (b"1", b"{}"), "0/1:1", 5)
    event = OutboxEvent("1", "T", "order", b"k", b"{}", None, "0/1:1", 5, [])
    found = {}
    for name, given in (("event", event), ("row", None)):
        record = dead_letter(
            row, given, "orders", Rejected(Reason.POISON_MESSAGE, "bad"), letter_topic="l", pipeline="p",
            limit_bytes=999, keep_payload=True,
        )  # fmt: skip
        headers = [part for key, value in record.headers for part in (key.encode(), _bytes(value))]
        found[name] = framed(record.value or b"", b"", *headers)
    return found


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def parking_records() -> dict[str, bytes]:
    redrive = ParkingRequest(DeadLetterId(0, 3), "redrive", "0/1:0", "me", "why", b"{}")
    records = {
        "key": state_record(OPTIONS, ENTITY, ParkedKey(5, "0/1:0", 3, event="e"), 5),
        "request": request_record(
            OPTIONS, ParkingRequest(DeadLetterId(0, 3), "redrive", "0/1:0", "me", "why", b"{}"), 1
        ),
        "give-up": request_record(OPTIONS, GiveUpRequest(ENTITY, "0/1:0", "me", "why"), 1),
        "answer": answered(OPTIONS, redrive, "wrong", 2)[1],
    }
    return {name: framed(record.key or b"", record.value or b"") for name, record in records.items()}


def waiting_records() -> dict[str, bytes]:
    event = OutboxEvent("1", "T", "order", b"k", b"{}", "2", "0/1:1", 5, [("traceparent", b"00-1")])
    found = {}
    for name, each in (("event", event), ("null", event._replace(payload=None))):
        record = waiting_record(OPTIONS, each)
        found[name] = framed(
            record.value or b"", *(part for key, value in record.headers for part in (key.encode(), _bytes(value)))
        )
    return found


def replay_plan() -> bytes:
    selection = Selection(types=("A",), since_ms=3)
    figures = Estimate(3, Counter(A=2), Counter({"orders": 3}), Counter(poison_message=1), [], 10, 20, 7, 0.5)
    made = ReplayPlan(
        "k7xq2m", "orders", "orders.yaml", 5, "log", "shadow", ".shadow", ("24h", ""), POSITIONS["lsn"],
        POSITIONS["cut"], selection, figures, ("a note",), ({"projection": "summary"},),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        made.write(file)
        return file.read_bytes()


def valid_inputs() -> dict[str, dict[str, bytes]]:
    frames = {name: pg.xlog_data(1, 2, 3, message) for name, message in MESSAGES.items()}
    stream = [frames[name] for name in ("begin", "relation", "insert", "insert", "commit")]
    positions = {name: json.dumps(to_stored(each)).encode() for name, each in POSITIONS.items()}
    times = TimeRange(1, 2)
    entry = ManifestEntry(
        1, "f", "p", "t", 2, 3, "ab", times, times, ("id",), ("1",), ("2",), (("id", 25),), 5
    )  # fmt: skip
    plain = {name: value for name, value in entry.to_json().items() if name != "digest"}
    avro = io.BytesIO()
    fastavro.schemaless_writer(avro, AVRO, {"id": "a", "amount": 1.5, "lines": [1, 2], "tags": {"x": b"y"}})
    body = {"nextBatch": [CHANGE, CHANGE], "postBatchResumeToken": {"_data": "82AB"}, "id": 7}
    configs = {"ours": json.dumps(OURS).encode(), "debezium": json.dumps(DEBEZIUM).encode()}
    rewind = Rewind("r", POSITIONS["lsn"], POSITIONS["cut"], 5)
    return {
        "pgoutput": MESSAGES,
        "frames": {**frames, "keepalive": pg.keepalive(5, 6, reply=True)},
        "transactions": {"one": framed(*stream), "two": framed(*stream, pg.keepalive(5, 6, reply=False), *stream)},
        "change": {
            "insert": bson.encode(CHANGE), "drop": bson.encode({**CHANGE, "operationType": "drop", "ns": {"db": "d"}}),
            "part": bson.encode({**CHANGE, "splitEvent": {"fragment": 1, "of": 2}}),
        },
        "batch": {"batch": bson.encode(body)},
        "position": positions,
        "lsn": {"lsn": b"16/B374D848"},
        "side_records": {
            "owner": ownership_value(Owner("i", "h", 1, 2, "x")), "beat": heartbeat_value("i"),
            "failed": b'{"state":"FAILED","error":{"code":"X"}}', "rewind": json.dumps(rewind.to_json()).encode(),
        },
        "settings": {"yaml": orjson.dumps(SETTINGS), "block": b"pipeline: orders\nsource:\n  table: public.outbox\n"},
        "connector": configs,
        "config_record": configs,
        "archive": {"entry": json.dumps(entry.to_json()).encode(), "old": json.dumps(plain).encode()},
        "letter": letters(),
        "parking": parking_records(),
        "waiting": waiting_records(),
        "plan": {"plan": replay_plan()},
        "body": {
            "plan": b'{"from": "2h", "to": "now", "type": ["A"], "target": "shadow", "suffix": ".s"}',
            "redrive": b'{"letters": ["0-1"], "payload": {"n": 1.10}, "why": "fixed", "all": true, "limit": 5}',
        },
        "projected": {"plain": framed(b"{}", b"id", b"1", b"type", b"T", b"tailrace.replay", b"r", b"version", b"3")},
        "avro": {"order": avro.getvalue()},
        "json": {"object": b'{"a": [1, -2.5e3, "\\u00e4", null, true], "b": {"c": 12345678901234567890}}'},
    }  # fmt: skip


def main() -> None:
    found = valid_inputs()
    assert found.keys() == TARGETS.keys(), found.keys() ^ TARGETS.keys()
    for target, inputs in found.items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (CORPUS / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
