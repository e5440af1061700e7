"""A processed-event marker, and the checks that its values can be stored."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from tailrace.errors import MarkerInvalid

EVENT_ID_BYTES = 1_000
GROUP_BYTES = 255
ENTITY_BYTES = 1_000
"""An index entry of Postgres has at most 2,704 bytes. It contains the consumer group and the event id."""
MAX_VERSION = 2**63 - 1

_NO_ID = "Without an id, a repeated event cannot be recognised."


class ProcessedEvent(NamedTuple):
    """The values of a marker. `consumer_group` and `event_id` identify it."""

    consumer_group: str
    event_id: str
    entity_id: str | None
    entity_version: int | None


def checked_marker(
    event_id: str | UUID, consumer_group: str, entity_id: str | None, entity_version: int | None
) -> ProcessedEvent:
    """Returns the marker. Raises MarkerInvalid if a value could not be stored, or not be recognised again."""
    if isinstance(event_id, UUID):
        event_id = str(event_id)
    _require_text("event id", event_id, EVENT_ID_BYTES, why=_NO_ID)
    _require_text("consumer group", consumer_group, GROUP_BYTES, why="Each consumer group applies an event once.")
    if entity_id is not None:
        _require_text("entity id", entity_id, ENTITY_BYTES, why="It is stored as text, or left out.")
    if entity_version is not None and (
        not isinstance(entity_version, int)
        or isinstance(entity_version, bool)
        or not -MAX_VERSION <= entity_version <= MAX_VERSION
    ):
        raise MarkerInvalid(
            f"the entity version is {type(entity_version).__name__}, not an integer of 64 bits",
            why="It is stored as a whole number, or left out.",
            remedy="Pass the version as an int, or leave it out.",
        )
    return ProcessedEvent(consumer_group, event_id, entity_id, entity_version)


def _require_text(name: str, value: object, most: int, *, why: str) -> None:
    if not isinstance(value, str):
        remedy = "Decode it: value.decode()." if isinstance(value, bytes) else "Pass it as a str."
        raise MarkerInvalid(f"the {name} is {type(value).__name__}, not text", why=why, remedy=remedy)
    if not value:
        raise MarkerInvalid(f"the {name} is empty", why=why, remedy="Dead-letter the event, or correct its producer.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        size = None
    if size is None or "\0" in value:
        raise MarkerInvalid(
            f"the {name} contains U+0000 or half a surrogate pair",
            why="The database cannot store it.",
            remedy="Dead-letter the event, or correct its producer.",
        )
    if size > most:
        raise MarkerInvalid(
            f"the {name} has {size:,} bytes",
            why=f"At most {most:,} bytes fit into the unique index.",
            remedy="Pass a digest of it, such as hashlib.sha256(value.encode()).hexdigest().",
        )
