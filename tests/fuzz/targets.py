"""What is fuzzed: each target takes bytes, and returns or raises one of its documented errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import bson
from starlette.requests import Request

from tailrace.api.connect.requests import ConnectError, _parsed, flat_config
from tailrace.api.v1.requests import from_body
from tailrace.archive.manifest import ManifestEntry
from tailrace.cli.operations import operations
from tailrace.config.connector import check_connector
from tailrace.config.load import load_pipeline
from tailrace.dlq.dead_letter import DeadLetter, DeadLetterId
from tailrace.dlq.parked_keys import ParkingState, state_record, waiting_event
from tailrace.errors import TailraceError
from tailrace.kafka.client import KafkaOptions
from tailrace.manager.config_topic import parse_record
from tailrace.positions.base import MALFORMED, from_stored, to_stored
from tailrace.positions.mongo import ClusterTime, StreamIdentity, TokenPosition
from tailrace.positions.postgres import LogIdentity, LsnPosition, parse_lsn
from tailrace.projections.core.event import read_event
from tailrace.projections.core.store import Partition
from tailrace.replay.plan import _digest, read_plan
from tailrace.schemas.avro.reader import NotAvroError, reader
from tailrace.schemas.strict_json import NotJsonError
from tailrace.schemas.strict_json import parse as parse_json
from tailrace.sources.mongo.changes import ChangeFollower
from tailrace.sources.mongo.documents import DocumentConverter
from tailrace.sources.mongo.raw_batch import documents_of, split_batch
from tailrace.sources.postgres.pgoutput import decode
from tailrace.sources.postgres.replication_protocol import XLOG_DATA_BODY, decode_frame
from tailrace.sources.postgres.transactions import Transactions
from tailrace.state import offsets, rewind_marker
from tailrace.state.owner_watch import parse_owner
from tailrace.state.position_history import _parse_entry
from tailrace.state.status import parse_failure
from tailrace.state.target_state import parse_target

OPTIONS = KafkaOptions("localhost:1", "p")
LOG = LogIdentity("7", 1, "shop", "s", "public.outbox", "1/2/3")
STREAM = StreamIdentity("rs0", "shop", {"outbox": "ab"}, "f")
AVRO = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "string"}, {"name": "amount", "type": ["null", "double"]},
        {"name": "lines", "type": {"type": "array", "items": "long"}},
        {"name": "tags", "type": {"type": "map", "values": "bytes"}},
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """`errors` are the documented errors besides TailraceError."""

    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = ()


def transactions(data: bytes) -> None:
    """A stream of frames, each behind its length (two bytes)."""
    start = LsnPosition(LOG, 100, 5)
    following = Transactions(start, schema="public", table="outbox", halt_on_change=True, moved_by="id")
    for part in chunks(data):
        if part[:1] == b"w":
            following.feed(part, XLOG_DATA_BODY)
        else:
            decode_frame(part)
        assert from_stored(to_stored(following.position)) == following.position


def chunks(data: bytes) -> list[bytes]:
    """Splits data into parts, each behind its length in two bytes."""
    found = []
    at = 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        found.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return found


def change(data: bytes) -> None:
    """A change of a change stream, as raw BSON."""
    position = TokenPosition(STREAM, {"_data": "82"}, ClusterTime(1, 1), 5)
    following = ChangeFollower(position, DocumentConverter(("_id",), ("n",), "fullDocument"))
    following.feed(data)
    assert from_stored(to_stored(following.position)) == following.position


def batch(data: bytes) -> None:
    """The raw cursor of a getMore."""
    array, rest = split_batch(data)
    documents_of(array)
    bson.decode(rest)


def position(data: bytes) -> None:
    found = offsets.parse(OPTIONS, data)
    assert from_stored(to_stored(found)) == found


def side_records(data: bytes) -> None:
    """Other records of the offsets topic, of which only some may be refused."""
    parse_owner(data)
    parse_failure(data)
    parse_target(data)
    _parse_entry(data)
    rewind_marker.parse(OPTIONS, data)


def settings(data: bytes, folder: Path | None = None) -> None:
    """A pipeline's file."""
    file = (folder or _folder()) / "pipeline.yaml"
    file.write_bytes(data)
    load_pipeline(file, {})


def connector(data: bytes) -> None:
    """A body of PUT /connectors/NAME/config, with our keys or with Debezium's."""
    config = flat_config(_parsed(data))
    check_connector("orders", {key: value for key, value in config.items() if value is not None}, _folder(), {})


def archive(data: bytes) -> None:
    try:
        found = ManifestEntry.from_json(json.loads(data))
    except MALFORMED:
        return  # `archive.repository` makes ArchiveDamaged of it
    assert ManifestEntry.from_json(found.to_json()) == found


def letter(data: bytes) -> None:
    """A dead letter: its value is the first part, names and values of headers are the others."""
    parts = chunks(data)
    names = [each.decode("utf-8", "replace") for each in parts[2::2]]
    found = DeadLetter(
        DeadLetterId(0, 1), 5, b"k", parts[0] if parts else b"", list(zip(names, parts[3::2], strict=False))
    )
    for view in (
        "reason", "explanation", "remedy", "position", "topic", "consumer", "read_from", "fingerprint", "event_id",
        "type", "key_text", "kind", "committed_ms", "is_row", "carried",
    ):  # fmt: skip
        getattr(found, view)
    for make in (found.event, found.row):
        try:
            make()
        except TailraceError:
            pass
    found.record()


def parking(data: bytes) -> None:
    """A record of the state topic of parked keys: key and value."""
    key, value, *_ = [*chunks(data), b"", b""]
    state = ParkingState()
    try:
        state.read(key, value)
    finally:
        state.read_request(key, value)
    again = ParkingState()
    for entity, parked in state.keys.items():
        assert parked.released + parked.since_ms < float("inf")
        record = state_record(OPTIONS, entity, parked, 5)
        again.read(record.key, record.value)
    assert again.keys == state.keys


def waiting(data: bytes) -> None:
    """A record of the topic of waiting events: value, then names and values of headers."""
    parts = chunks(data)
    headers: list[Any] = list(zip([each.decode("utf-8", "replace") for each in parts[1::2]], parts[2::2], strict=False))
    waiting_event(headers, parts[0] if parts else b"")


def plan(data: bytes) -> None:
    """A file of `tailrace replay plan`, as it is and with a correct digest, as if the whole of it were made up."""
    file = _folder() / "plan.json"
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        fields.pop("digest", None)
        try:
            fields["digest"] = _digest(fields)
            file.write_text(json.dumps(fields))
            read_plan(file)
        except (TailraceError, UnicodeEncodeError):
            pass
    file.write_bytes(data)
    read_plan(file)


def body(data: bytes) -> None:
    """The body of a request to /api/v1, for each operation that takes one."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    for operation in operations():
        request = Request({"type": "http", "method": "POST", "query_string": b"", "headers": []}, receive)
        try:
            asyncio.run(from_body(request, operation))
        except TailraceError:
            pass


def projected(data: bytes) -> None:
    """A record of any producer, read by a projection: value, then names and values of headers."""
    parts = chunks(data)
    headers: list[Any] = list(zip([each.decode("utf-8", "replace") for each in parts[1::2]], parts[2::2], strict=False))
    read_event(Partition("t", 0), 0, b"k", parts[0] if parts else None, headers, 5)


def avro(data: bytes) -> object:
    return _avro()(data)


@cache
def _avro() -> Callable[[bytes], Any]:
    return reader(AVRO, "order.avsc", {})


@cache
def _folder() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="tailrace-fuzz-"))


TARGETS = {
    "pgoutput": Target(decode),
    "frames": Target(decode_frame),
    "transactions": Target(transactions),
    "change": Target(change),
    "batch": Target(batch, (bson.errors.InvalidBSON,)),
    "position": Target(position),
    "lsn": Target(lambda data: parse_lsn(data.decode("latin-1")), (ValueError,)),
    "side_records": Target(side_records),
    "settings": Target(settings),
    "connector": Target(connector, (ConnectError,)),
    "config_record": Target(lambda data: parse_record(b"orders", data)),
    "archive": Target(archive),
    "letter": Target(letter),
    "parking": Target(parking),
    "waiting": Target(waiting),
    "plan": Target(plan),
    "body": Target(body),
    "projected": Target(projected),
    "avro": Target(avro, (NotAvroError,)),
    "json": Target(lambda data: parse_json(data, keys_unique=True), (NotJsonError,)),
}
