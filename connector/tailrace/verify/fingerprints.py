"""Fingerprints of rows and records, used to compare an outbox row with its Kafka record. Pure.

The fingerprint of a payload is a frame and a digest. The payload of a JSON event stands byte for byte in the value of
its record, in every format: alone, behind a schema id, or inside a CloudEvent. Avro, and a value with metadata inside,
are made again from the row, with the pipeline's own processor; records written with another schema cannot be compared,
and their frame differs. A digest has 64 bits of BLAKE2b and is the same in every process. Only payloads with the same
id are compared, so a change stays unnoticed once in 2^64.

For the bulk comparison, everything that must be equal is packed into one bytes object per row or record:

    tag (1 byte)   frame (4)   digest (8)   key (4)   type (4)   event id

The tag is 0 for a row, and for a record that was published normally and lies in the window. Other tags mark what must
be examined one by one: records with flags, and payloads that cannot be compared.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from tailrace.errors import Rejected
from tailrace.event import Headers, OutboxEvent, Route
from tailrace.pipeline.processor import EventProcessor
from tailrace.records.formats import RecordFormat
from tailrace.records.framing import VALUE_HEADER
from tailrace.verify.findings import UNKNOWN

HEAD = Struct("<BiqII")
"""Everything before the event id in a packed fingerprint."""
_PAYLOAD = Struct("<Biq")
PLAIN = bytes(5)
"""Tag and frame of a JSON payload without flags."""
FLAGS = 0x3F
"""The bits of a tag that hold the flags of a record."""
_UNCOMPARED_RECORD, _UNCOMPARED_ROW = 0x40, 0x80
"""Tags of what cannot be compared; two of them, so that a row and a record never match."""
NO_CHECKSUM = bytes(4)
NO_CHECKSUMS = bytes(8)
"""Key and type checksums of a row that today's rules do not publish; they are not compared."""
_NO_KEY = (2).to_bytes(4, "little")
PREFIX_BYTES = 5
DIGEST_BYTES = 8
NO_PAYLOAD = b"\1".ljust(DIGEST_BYTES, b"\0")
"""The digest of an event without a payload."""
_DATA = b'"datacontenttype":"application/json","data":'
"""What precedes the payload in a structured CloudEvent. Inside a JSON string these quotes would be escaped."""
_JSON = 0
"""The frame of JSON, regardless of its schema."""
_new = tuple.__new__


class Fingerprint(NamedTuple):
    """The fingerprint of a payload."""

    frame: int
    digest: int


UNCOMPARED = Fingerprint(UNKNOWN, 0)


class RecordFingerprinter:
    """Takes the fingerprints of a pipeline's records and dead letters."""

    def __init__(self, format: RecordFormat) -> None:
        self._is_avro = format.value == "avro"
        self._is_made = self._is_avro or format.has_metadata
        """Whether a value is made from the row, rather than being its payload."""
        self._prefixed = format.schema_id == "prefix"
        self._structured = format.cloudevents == "structured"
        self.keys_are_plain = format.key == "bytes"
        """Whether the key of a record is exactly the key of its row."""
        self._prefixed_keys = self._prefixed and not self.keys_are_plain
        self.is_plain = not (self._is_avro or self._prefixed or self._structured)
        """Whether the value of a record is exactly the payload of its row."""

    def of_record(self, value: bytes | None, headers: Headers) -> Fingerprint:
        if value is None or self.is_plain:
            return of_payload(value)
        frame = _JSON
        if self._is_avro:
            prefix = next((given for name, given in reversed(headers) if name == VALUE_HEADER), None)
            frame = _schema_frame(value[:PREFIX_BYTES] if self._prefixed else prefix)
        if self._prefixed:
            value = value[PREFIX_BYTES:]
        elif self._structured:
            before, found, data = value.partition(_DATA)
            value = data[:-1] if found else before
        return _new(Fingerprint, (frame, number_of(digest_of(value))))

    def of_key(self, key: bytes | None) -> bytes | None:
        """Returns the key without its schema id, which changes with the schema's version."""
        return key[PREFIX_BYTES:] if key is not None and self._prefixed_keys else key

    def of_dead_letter(self, kind: str, value: bytes) -> Fingerprint:
        """A dead letter stores the payload as it is in the row, or not at all."""
        if kind == "null":
            return of_payload(None)
        return UNCOMPARED if self._is_made or kind != "original" else of_payload(value)


class Fingerprinter(RecordFingerprinter):
    """Takes the fingerprints of rows as well."""

    def __init__(self, processor: EventProcessor, format: RecordFormat) -> None:
        super().__init__(format)
        self._processor = processor

    def of_row(self, event: OutboxEvent, to: Route | None) -> Fingerprint:
        """`to` is the route of the event; None if it is not published."""
        if not self._is_made:
            return of_payload(event.payload)
        if to is None:
            return UNCOMPARED
        try:
            made = self._processor.make_record(event, to, self._processor.validate(event, to.topic))
        except Rejected:
            return UNCOMPARED
        return self.of_record(made.value, made.headers)


def of_payload(payload: bytes | None) -> Fingerprint:
    return _new(Fingerprint, (_JSON, number_of(NO_PAYLOAD if payload is None else digest_of(payload))))


def digest_of(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


def number_of(digest: bytes) -> int:
    """Returns a digest as a signed 64-bit number, the only kind that databases have."""
    return int.from_bytes(digest, "little", signed=True)


def checksum(value: bytes | None) -> bytes:
    """Returns the checksum of a record's key or type. It equals NO_CHECKSUM only once in 2^32."""
    return _NO_KEY if value is None else crc32(value, 1).to_bytes(4, "little")


def pack_row(name: str, payload: Fingerprint, checksums: bytes = NO_CHECKSUMS) -> bytes:
    """`checksums` are those of key and type."""
    tag = _UNCOMPARED_ROW if payload.frame == UNKNOWN else 0
    return _PAYLOAD.pack(tag, *payload) + checksums + name.encode("utf-8", "surrogatepass")


def pack_record(name: bytes, payload: Fingerprint, flags: int, checksums: bytes = NO_CHECKSUMS) -> bytes:
    tag = flags | (_UNCOMPARED_RECORD if payload.frame == UNKNOWN else 0)
    return _PAYLOAD.pack(tag, *payload) + checksums + name


def _schema_frame(schema: str | bytes | None) -> int:
    """Returns the frame of a schema id; 0 for no schema."""
    if schema is None:
        return _JSON
    given = schema.encode() if isinstance(schema, str) else schema
    return int.from_bytes(blake2b(given, digest_size=4).digest(), "little") >> 1
