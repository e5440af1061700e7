"""What of a record's value must be the same as in its row, in little: a frame and a digest. Pure.

JSON stands byte for byte in every format's value: alone, behind a schema's id, or inside a CloudEvent, of whose other
parts a table does not remember all (the time of the commit). Avro is written anew from the row, through the pipeline's
own line; with another schema than that of the record, nothing can be said, and the frame tells that. Digests are 64
bits of BLAKE2b, the same in every process: only payloads of one id are compared, so a change goes unseen once in 2^64.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from tailrace.errors import Rejected
from tailrace.event import Headers, OutboxEvent, Route
from tailrace.pipeline.processor import EventProcessor
from tailrace.records.formats import RecordFormat
from tailrace.records.framing import VALUE_HEADER
from tailrace.verify.compare import UNKNOWN

PREFIX_BYTES = 5
DIGEST_BYTES = 8
NOTHING = b"\1".ljust(DIGEST_BYTES, b"\0")
"""The digest of an event without a payload."""
_DATA = b'"datacontenttype":"application/json","data":'
"""Where the payload begins in a structured CloudEvent: inside a JSON text these quotes would be escaped."""
_BARE = 0
"""The frame of JSON, whatever its schema."""


_new_print = tuple.__new__


class Fingerprint(NamedTuple):
    frame: int
    digest: int


UNTOLD = Fingerprint(UNKNOWN, 0)


class RecordFingerprints:
    """Takes the prints of what Kafka holds of one pipeline: records and letters."""

    def __init__(self, format: RecordFormat) -> None:
        self._is_avro = format.value == "avro"
        self._prefixed = format.schema_id == "prefix"
        self._structured = format.cloudevents == "structured"
        self.keys_are_plain = format.key == "bytes"
        """Whether a record's key is that of its row, and nothing else."""
        self._prefixed_keys = self._prefixed and not self.keys_are_plain
        self.is_plain = not (self._is_avro or self._prefixed or self._structured)
        """Whether a value is the payload itself, and nothing else."""

    def of_record(self, value: bytes | None, headers: Headers) -> Fingerprint:
        if value is None or self.is_plain:
            return of_payload(value)
        frame = _BARE
        if self._is_avro:
            prefix = next((given for name, given in reversed(headers) if name == VALUE_HEADER), None)
            frame = _numbered(value[:PREFIX_BYTES] if self._prefixed else prefix)
        if self._prefixed:
            value = value[PREFIX_BYTES:]
        elif self._structured:
            before, found, data = value.partition(_DATA)
            value = data[:-1] if found else before
        return _new_print(Fingerprint, (frame, number_of(digest_of(value))))

    def of_key(self, key: bytes | None) -> bytes | None:
        """The key of a record without its schema's id: another version of that changes no key."""
        return key[PREFIX_BYTES:] if key is not None and self._prefixed_keys else key

    def of_letter(self, kind: str, value: bytes) -> Fingerprint:
        """A letter keeps the payload as the row has it, or not at all."""
        if kind == "null":
            return of_payload(None)
        return UNTOLD if self._is_avro or kind != "original" else of_payload(value)


class Fingerprints(RecordFingerprints):
    """Takes the prints of rows, too."""

    def __init__(self, processor: EventProcessor, format: RecordFormat) -> None:
        super().__init__(format)
        self._processor = processor

    def of_row(self, event: OutboxEvent, to: Route | None) -> Fingerprint:
        """`to` is where the event goes; None if nowhere."""
        if not self._is_avro:
            return of_payload(event.payload)
        if to is None:
            return UNTOLD
        try:
            made = self._processor.make_record(event, to, self._processor.validate(event, to.topic))
        except Rejected:
            return UNTOLD
        return self.of_record(made.value, made.headers)


def of_payload(payload: bytes | None) -> Fingerprint:
    return _new_print(Fingerprint, (_BARE, number_of(NOTHING if payload is None else digest_of(payload))))


def digest_of(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


def number_of(digest: bytes) -> int:
    """A digest as a number of 64 bits, with a sign: databases have no others."""
    return int.from_bytes(digest, "little", signed=True)


def _numbered(schema: str | bytes | None) -> int:
    """A frame for the id of a schema; 0 stands for none."""
    if schema is None:
        return _BARE
    given = schema.encode() if isinstance(schema, str) else schema
    return int.from_bytes(blake2b(given, digest_size=4).digest(), "little") >> 1
