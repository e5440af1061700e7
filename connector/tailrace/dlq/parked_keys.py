"""Records of parked keys: their state, the events that wait, and the requests of people.

A key whose event was dead-lettered under the policy `park` is parked: its later events go to the waiting topic, in the
transaction of their batch, until the dead letter is redriven or discarded. The state is on a compacted topic:
`key/…` is the state of a key, `request/…` the request of a person, `answer/…` why it could not be carried out, and
`give-up/…` a request to release a key whose dead letter is gone.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tailrace.dlq.dead_letter import FIRST as FIRST  # noqa: PLC0414 - re-exported
from tailrace.dlq.dead_letter import DeadLetterId
from tailrace.errors import ConfigError, OffsetRecordCorrupt
from tailrace.event import Headers, OutboxEvent, Record, Route
from tailrace.kafka.client import KafkaOptions
from tailrace.positions.base import MALFORMED
from tailrace.records.plain import OUR_HEADERS, plain_record

Entity = tuple[str, bytes]
"""An aggregate and a key. The order of events is kept within it."""
KEY_HEADER = "tailrace.key"
_KEY, _REQUEST, _ANSWER, _GIVE_UP = b"key/", b"request/", b"answer/", b"give-up/"


def waiting_topic(options: KafkaOptions) -> str:
    """The topic of events that wait, in commit order."""
    return f"{options.pipeline}.parked"


def state_topic(options: KafkaOptions) -> str:
    return f"{options.pipeline}.parking"


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """One parked key. `place` is the position of the first event, which has the dead letter. Waiting events below the
    offset `released` on the waiting topic are processed. `releasing`: the dead letter is resolved.
    """

    since_ms: int
    place: str
    released: int = 0
    releasing: bool = False
    event: str = ""
    """The id of the first event."""


@dataclass(frozen=True, slots=True)
class ParkingRequest:
    """A request to redrive the dead letter of a parked key, perhaps with another payload, or to discard it."""

    letter: DeadLetterId
    action: Literal["redrive", "discard"]
    position: str
    """Position of the event: if the topic is re-created, another dead letter may have the id."""
    by: str
    why: str
    payload: bytes | None = None

    def to_json(self) -> dict[str, Any]:
        found = {"action": self.action, "position": self.position, "by": self.by, "why": self.why}
        return found if self.payload is None else {**found, "payload": base64.b64encode(self.payload).decode()}


@dataclass(frozen=True, slots=True)
class GiveUpRequest:
    """A request for a key whose dead letter is gone: discard the first event and release the others."""

    entity: Entity
    position: str
    """Position of the first event: the request is ignored if another event is the first by now."""
    by: str
    why: str


def entity_of(event: OutboxEvent) -> Entity | None:
    """Returns None for an event without a key, which has no order to keep."""
    return None if event.key is None else (event.aggregate, event.key)


def waiting_record(options: KafkaOptions, event: OutboxEvent) -> Record:
    """The record of an event that waits, with everything needed to process it later."""
    key = event.key or b""
    kind = "null" if event.payload is None else "original"
    headers: Headers = [
        ("tailrace.pipeline", options.pipeline),
        ("tailrace.position", event.position),
        ("tailrace.aggregate", event.aggregate),
        ("tailrace.payload", kind),
        (KEY_HEADER, key),
    ]
    if event.version is not None:
        headers.append(("tailrace.version", event.version))
    headers += plain_record(event, Route("")).headers
    return Record(
        waiting_topic(options), event.payload or b"", _joined(event.aggregate, key), headers, event.committed_ms
    )


def waiting_event(headers: Headers | None, value: bytes) -> OutboxEvent:
    """The event of such a record; OffsetRecordCorrupt if it is none."""
    try:
        return _waiting_event(headers or [], value)
    except (*MALFORMED, StopIteration) as error:
        raise OffsetRecordCorrupt(
            f"a record on the topic of waiting events has no event: {error!r}",
            why="Something else wrote it, or a newer version of Tailrace did. Without it, the order of a parked key is "
            "not certain.",
            remedy="Stop what writes to this topic; only Tailrace may. Remove records up to the last wrong one with "
            "kafka-delete-records.sh. `tailrace replay` publishes events that waited there from the outbox.",
        ) from None


def _waiting_event(headers: Headers, value: bytes) -> OutboxEvent:
    """Our headers come first, so a column of the table cannot hide them."""
    at = next(index for index, (name, _) in enumerate(headers) if name == "id")
    ours = {name: _text(given) for name, given in headers[: at + len(OUR_HEADERS)] if name != KEY_HEADER}
    key = dict(headers[:at])[KEY_HEADER] or b""
    return OutboxEvent(
        id=ours["id"],
        type=ours["type"],
        aggregate=ours["tailrace.aggregate"],
        key=key if isinstance(key, bytes) else key.encode(),
        payload=None if ours["tailrace.payload"] == "null" else value,
        version=ours.get("tailrace.version"),
        position=ours["tailrace.position"],
        committed_ms=int(ours["timestamp"]),
        extra=headers[at + len(OUR_HEADERS) :],
    )


def _text(value: str | bytes | None) -> str:
    return value if isinstance(value, str) else (value or b"").decode()


def waiting_key(entity: Entity) -> bytes:
    """The key of the waiting topic's records of this entity."""
    return _joined(*entity)


def state_record(options: KafkaOptions, entity: Entity, state: ParkedKey | None, at_ms: int) -> Record:
    """None: the key is no longer parked."""
    value = None if state is None else json.dumps(asdict(state)).encode()
    return Record(state_topic(options), value, _KEY + base64.b64encode(_joined(*entity)), [], at_ms)


def request_record(options: KafkaOptions, request: ParkingRequest | GiveUpRequest, at_ms: int) -> Record:
    if isinstance(request, GiveUpRequest):
        value = {"position": request.position, "by": request.by, "why": request.why}
        return Record(state_topic(options), json.dumps(value).encode(), _give_up_key(request.entity), [], at_ms)
    return Record(
        state_topic(options), json.dumps(request.to_json()).encode(), _REQUEST + str(request.letter).encode(), [], at_ms
    )


def answered(options: KafkaOptions, request: ParkingRequest, failure: str | None, at_ms: int) -> list[Record]:
    """The records that answer a request; `failure` says why it could not be done."""
    name = str(request.letter).encode()
    answer = None if failure is None else json.dumps({"failure": failure}).encode()
    return [
        Record(state_topic(options), None, _REQUEST + name, [], at_ms),
        Record(state_topic(options), answer, _ANSWER + name, [], at_ms),
    ]


def given_up(options: KafkaOptions, entity: Entity, at_ms: int) -> Record:
    """Removes the request to release a key."""
    return Record(state_topic(options), None, _give_up_key(entity), [], at_ms)


def _give_up_key(entity: Entity) -> bytes:
    return _GIVE_UP + base64.b64encode(_joined(*entity))


def _entity(encoded: bytes) -> Entity:
    aggregate, _, bare = base64.b64decode(encoded, validate=True).partition(b"\0")
    return aggregate.decode(), bare


class ParkingState:
    """The content of the state topic, read record by record."""

    def __init__(self) -> None:
        self.keys: dict[Entity, ParkedKey] = {}
        self.requests: dict[DeadLetterId, ParkingRequest] = {}
        self.gives_up: dict[Entity, GiveUpRequest] = {}
        self.answers: dict[DeadLetterId, str] = {}

    def read(self, key: bytes | None, value: bytes | None) -> None:
        """Applies a record. An unreadable state of a key stops the pipeline, because its order would be lost."""
        name = key or b""
        if name.startswith(_KEY):
            try:
                entity = _entity(name[len(_KEY) :])
                _keep(self.keys, entity, None if value is None else _parked(json.loads(value)))
            except MALFORMED as error:
                raise OffsetRecordCorrupt(
                    f"a record under {name.decode(errors='replace')!r} is not the state of a parked key: {error!r}",
                    why="Something else wrote it, or a newer version of Tailrace did.",
                    remedy="Write the last good record of that key again, or a tombstone if no events wait.",
                ) from None
        else:
            self.read_request(key, value)

    def read_request(self, key: bytes | None, value: bytes | None) -> None:
        """Applies a request or an answer; ignores unknown records."""
        name = key or b""
        try:
            if name.startswith(_REQUEST):
                letter = DeadLetterId.parse(name[len(_REQUEST) :].decode())
                _keep(self.requests, letter, None if value is None else _request(letter, json.loads(value)))
            elif name.startswith(_ANSWER):
                letter = DeadLetterId.parse(name[len(_ANSWER) :].decode())
                _keep(self.answers, letter, None if value is None else str(json.loads(value)["failure"]))
            elif name.startswith(_GIVE_UP):
                entity = _entity(name[len(_GIVE_UP) :])
                _keep(self.gives_up, entity, None if value is None else _give_up(entity, json.loads(value)))
        except (*MALFORMED, ConfigError):
            return


def _parked(fields: dict[str, Any]) -> ParkedKey:
    state = ParkedKey(**fields)
    numbers, texts, flags = (state.since_ms, state.released), (state.place, state.event), (state.releasing,)
    for expected, values in ((int, numbers), (str, texts), (bool, flags)):
        if wrong := [value for value in values if type(value) is not expected]:
            raise TypeError(f"{wrong[0]!r} is not of type {expected.__name__}")
    return state


def _request(letter: DeadLetterId, fields: dict[str, Any]) -> ParkingRequest:
    payload = fields.get("payload")
    action: Literal["redrive", "discard"] = "discard" if fields["action"] == "discard" else "redrive"
    given = None if payload is None else base64.b64decode(payload)
    return ParkingRequest(
        letter, action, str(fields["position"]), str(fields.get("by", "")), str(fields.get("why", "")), given
    )


def _give_up(entity: Entity, fields: dict[str, Any]) -> GiveUpRequest:
    return GiveUpRequest(entity, str(fields["position"]), str(fields.get("by", "")), str(fields.get("why", "")))


def _keep(known: dict[Any, Any], name: object, value: object) -> None:
    if value is None:
        known.pop(name, None)
    else:
        known[name] = value


def _joined(aggregate: str, key: bytes) -> bytes:
    # An aggregate is text from a table's column, and Postgres allows no NUL in those.
    return aggregate.encode() + b"\0" + key
