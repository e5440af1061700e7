"""Collects the passport of an event: searches its outbox, its topics, its dead letters and its projections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tailrace.check.health import read_kafka_status
from tailrace.dlq.redrive import pass_again
from tailrace.errors import ConfigError, EventUnknown, LayoutMismatch, Rejected, TailraceError, Unavailable
from tailrace.event import OutboxEvent, Record
from tailrace.replay.source_log import topics_of
from tailrace.state import position_history
from tailrace.trace.kafka_search import MARGIN_MS, find_dead_letters, find_parking, find_records
from tailrace.trace.outbox_row import FoundRow, find_row
from tailrace.trace.passport import Passport, Validation
from tailrace.trace.projections import FoundMarker, MarkerStore, find_markers
from tailrace.worker.options import layout_of
from tailrace.worker.wiring import Wiring

LONGEST_ID = 1000


def trace(
    wiring: Wiring, event_id: str, *, since_ms: int | None = None, stores: Sequence[MarkerStore] = ()
) -> Passport:
    """Returns what is known of an event; raises EventUnknown if that is nothing.

    Topics are read from the time of the row on, or from `since_ms`; without either, from their beginning.
    """
    require_id(event_id)
    notes: list[str] = []
    row = _row(wiring, event_id, notes)
    event = _event(wiring, row)
    if event is not None:
        event_id = event.id  # as the database writes it
    if since_ms is None and row is not None and row.created_ms:
        since_ms = row.created_ms - MARGIN_MS
    kafka = wiring.kafka
    topics = topics_of(wiring, position_history.read(kafka))
    records, searched = find_records(kafka, topics, event_id, since_ms)
    found = Passport(
        event_id,
        wiring.settings.pipeline,
        row,
        event,
        None,
        records,
        find_dead_letters(kafka, event_id, since_ms),
        find_parking(kafka, event_id),
        read_kafka_status(kafka).position,
        since_ms=since_ms,
        searched=searched,
    )
    if not found.is_known:
        raise _unknown(found, notes)
    if row is None and not notes:
        notes.append("the outbox has no row with this id: it was deleted or archived")
    validation = _validation(wiring, found)
    projections = _projections(stores, event_id, found, notes)
    return replace(found, validation=validation, projections=projections, notes=tuple(notes))


def require_id(event_id: str) -> None:
    if not event_id or len(event_id) > LONGEST_ID or "\0" in event_id or not _is_text(event_id):
        raise ConfigError(
            "this cannot be the id of an event", remedy=f"Give a text of 1 to {LONGEST_ID:,} characters, without NUL."
        )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _row(wiring: Wiring, event_id: str, notes: list[str]) -> FoundRow | None:
    """A database that does not answer must not hide what Kafka knows."""
    try:
        found = find_row(wiring, event_id)
    except TailraceError as error:
        notes.append(f"the outbox cannot be read: {error.code}: {error.what}")
        return None
    if found is None and getattr(wiring.database, "messages", None) is not None:
        notes.append("the events of this pipeline are messages: there is no table")
    return found


def _event(wiring: Wiring, row: FoundRow | None) -> OutboxEvent | None:
    if row is None:
        return None
    try:
        return layout_of(wiring.settings).read(row.row)
    except (Rejected, LayoutMismatch):
        return None


def _validation(wiring: Wiring, found: Passport) -> Validation | None:
    """Whether the event would be published today, from its row or else its dead letter."""
    letter = found.dead_letters[-1][0] if found.dead_letters else None
    if found.row is None and letter is None:
        return None
    try:
        processor = wiring.processor()

        if found.row is not None:
            row = found.row.row
            return _validated(lambda: processor.to_record(processor.layout.read(row)))
        return None if letter is None else _validated(lambda: pass_again(processor, letter))
    except Unavailable as error:
        return Validation(None, reason=error.code, explanation=error.what, remedy=error.remedy)
    except LayoutMismatch as error:
        return Validation(False, reason=error.code, explanation=error.what, remedy=error.remedy)


def _validated(make: Callable[[], Record]) -> Validation:
    try:
        made = make()
    except Rejected as rejected:
        return Validation(False, reason=rejected.reason.value, explanation=rejected.explanation, remedy=rejected.remedy)
    return Validation(True, made.topic, made.key)


def _projections(stores: Sequence[MarkerStore], event_id: str, found: Passport, notes: list[str]) -> list[FoundMarker]:
    markers: list[FoundMarker] = []
    for store in stores:
        try:
            markers += find_markers(store, event_id, found.records)
        except TailraceError as error:
            notes.append(f"the projections in {store.name} cannot be read: {error.code}: {error.what}")
    return markers


def _unknown(found: Passport, notes: list[str]) -> EventUnknown:
    since = f" since {found.since_ms} ms" if found.since_ms else ""
    return EventUnknown(
        f"the pipeline {found.pipeline} knows no event {found.id}",
        why="; ".join(notes)
        or f"Neither its outbox has it, nor {found.searched:,} records of its topics{since}, nor its dead letters.",
        remedy="Check the id and the pipeline. Retention may have deleted its records, and the row may be archived.",
    )
