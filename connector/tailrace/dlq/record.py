"""Builds the dead letter of an event that cannot be published: its value, the reason and where it came from. Pure.

Pipelines and consumers (`projections/core/failures.py`) write the same format. The record always fits: the value
is limited to `limit_bytes`, and headers are limited, too, because a dead letter that Kafka rejects would stop the
pipeline. The value is never null, which would mean "delete" on a compacted topic. `tailrace.payload` says what the
value is: `original`, `omitted` (a summary replaces it), `null` (the payload was NULL) or `row` (the row could not be
read as an event; the value has its columns as JSON). The headers contain what is needed to process the event again.
Headers of Kafka Connect and Spring are included, so that tools for their dead letters can read ours.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import orjson

from tailrace.errors import Rejected
from tailrace.event import Column, Headers, OutboxEvent, Record, Route, Row
from tailrace.records.plain import plain_record

HEADER_BYTES = 4096
"""Limit of one header. Kafka's default limit for a whole record is 1 MB."""
CARRIED_BYTES = 65_536
"""Limit of all further columns of the table together, or of all headers that a consumer's record had."""
FRAME_BYTES = 10
"""Kafka adds two lengths to a header."""
PREFIX = "tailrace."
FOREIGN = ("__connect.errors.", "kafka_dlt-")
KEPT = f"{PREFIX}kept."
"""Prefix of an original header whose name dead letters use themselves."""
EXCEPTION = "tailrace.Rejected"
"""Used where other tools name an exception class."""


class Contents(NamedTuple):
    """The contents of a dead letter, each part whole or not at all. `kind` is `original`, `null` or `row`."""

    kind: str
    original: bytes
    key: bytes | None
    carried: Headers


def dead_letter(
    row: Row,
    event: OutboxEvent | None,
    topic: str | None,
    rejected: Rejected,
    *,
    letter_topic: str,
    pipeline: str,
    limit_bytes: int,
    keep_payload: bool = True,
    ignored: frozenset[str] = frozenset(),
) -> Record:
    """The dead letter of `row`, for `letter_topic`.

    `event` is None if the row could not be read; `topic` is where it would have gone, if known. Without `keep_payload`
    only the hash and the length of the original are kept. Columns in `ignored` change after the row was written, so
    they are left out: the hash of the row must stay the same.
    """
    headers = reason_headers(
        rejected, row.position, topic, row.committed_ms, by=pipeline, stage="VALUE_CONVERTER", details=keep_payload
    )
    headers.append(("tailrace.pipeline", pipeline))
    if event is None:
        pairs = zip(row.columns, row.values, strict=False)
        kept = [(column, value) for column, value in pairs if column.name not in ignored]
        contents = Contents("row", _row_as_json(kept), None, [])
        columns = orjson.dumps([[column.name, column.type_oid] for column, _ in kept])
        if len(columns) <= HEADER_BYTES:  # cut, it would be no JSON; without it, the row cannot be redriven
            headers.append(("tailrace.columns", columns))
    else:
        contents = payload_contents(event.payload, event.key, plain_record(event, Route(letter_topic)).headers)
        headers.append(("tailrace.aggregate", cut(event.aggregate)))
        if event.version is not None:
            headers.append(("tailrace.version", cut(event.version)))
    # Only we use our prefix: a column of that name could forge a reason.
    return build_dead_letter(
        letter_topic,
        contents,
        headers,
        row.committed_ms,
        limit_bytes=limit_bytes,
        keep_payload=keep_payload,
        rename=False,
    )


def reason_headers(
    rejected: Rejected,
    position: str,
    topic: str | None,
    time_ms: int,
    *,
    by: str,
    stage: str,
    details: bool,
) -> Headers:
    """Headers with the reason and the origin, under our names and others'. `stage` is one of Kafka Connect's."""
    explanation = cut(_explanation(rejected, details=details))
    headers: Headers = [
        ("tailrace.reason", rejected.reason.value),
        ("tailrace.explanation", explanation),
        ("tailrace.position", cut(position)),
        ("__connect.errors.connector.name", cut(by)),
        ("__connect.errors.task.id", "0"),
        ("__connect.errors.stage", stage),
        ("__connect.errors.exception.class.name", EXCEPTION),
        ("__connect.errors.exception.message", explanation),
        ("kafka_dlt-exception-fqcn", EXCEPTION),
        ("kafka_dlt-exception-message", explanation),
        ("kafka_dlt-original-timestamp", struct.pack(">q", time_ms)),
    ]
    if topic is not None:
        named = cut(topic)
        headers += [(name, named) for name in ("tailrace.topic", "__connect.errors.topic", "kafka_dlt-original-topic")]
    return headers


def payload_contents(payload: bytes | None, key: bytes | None, carried: Headers) -> Contents:
    return Contents("null", b"", key, carried) if payload is None else Contents("original", payload, key, carried)


def build_dead_letter(
    letter_topic: str,
    contents: Contents,
    details: Headers,
    time_ms: int,
    *,
    limit_bytes: int,
    keep_payload: bool,
    rename: bool,
) -> Record:
    """The dead letter with everything of `contents` that fits, and the names of what does not.

    Original headers whose names dead letters use are renamed if `rename`, else left out.
    """
    kind, original, key, carried = contents
    ours = list(details)
    digest = hashlib.sha256(original).hexdigest()
    if kind != "null":
        ours += [("tailrace.payload.length", str(len(original))), ("tailrace.payload.sha256", digest)]
    value = original
    if kind == "null":
        value = b'{"omitted":false,"payload":null}'
    elif not keep_payload or len(original) > limit_bytes:
        kind = "omitted"
        value = orjson.dumps({"omitted": True, "length": len(original), "sha256": digest})
    ours.append(("tailrace.payload", kind))
    if key is not None and len(key) > HEADER_BYTES:
        # A cut key would be another key, which is worse than none.
        ours.append(("tailrace.key.omitted", str(len(key))))
        key = None
    kept, left_out = _bounded(carried, rename=rename)
    if left_out:
        ours.append(("tailrace.headers.omitted", cut(",".join(left_out))))
    return Record(letter_topic, value, key, ours + kept, time_ms)


def reason_and_type(letter: Record) -> tuple[str, str]:
    """The reason and the event type of a dead letter; a row that could not be read has no type."""
    texts = {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value or ""
        for name, value in letter.headers
    }
    return texts["tailrace.reason"], texts.get("type", "unknown")


def count_dead_letters(records: Iterable[Record]) -> Counter[tuple[str, str]]:
    """How many dead letters there are of each reason and event type."""
    return Counter(map(reason_and_type, records))


def _explanation(rejected: Rejected, *, details: bool) -> str:
    """Without `details` only what is wrong: the text behind the first colon may quote the payload."""
    text = rejected.explanation if details else rejected.explanation.partition(": ")[0]
    return f"{text} Remedy: {rejected.remedy}" if rejected.remedy else text


def cut(text: str) -> bytes:
    """UTF-8 of at most HEADER_BYTES, without half a character at the end."""
    encoded = text.encode(errors="replace")
    return encoded if len(encoded) <= HEADER_BYTES else encoded[:HEADER_BYTES].decode(errors="ignore").encode()


def _bounded(carried: Headers, *, rename: bool) -> tuple[Headers, list[str]]:
    """The original headers that fit, and the names of those that do not."""
    kept: Headers = []
    left_out: list[str] = []
    room = CARRIED_BYTES
    for name, value in carried:
        reserved = name.startswith((PREFIX, *FOREIGN))
        stored = KEPT + name if reserved else name
        size = FRAME_BYTES + len(stored.encode(errors="replace"))
        size += len(value.encode(errors="replace") if isinstance(value, str) else value or b"")
        if (reserved and not rename) or size > min(room, HEADER_BYTES):
            left_out.append(name)
            continue
        room -= size
        kept.append((stored, value))
    return kept, left_out


def _row_as_json(row: list[tuple[Column, bytes | None]]) -> bytes:
    """Every column by name, as text or base64, so that nothing of an unreadable row is lost."""
    return orjson.dumps({column.name: _text(value) for column, value in row})


def _text(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
