"""Reads the markers of an event from projections in MongoDB."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.sources.mongo.client import connect, translated_errors
from tailrace.trace.kafka_search import FoundRecord
from tailrace.trace.projections import MARKERS, OFFSETS, TIMEOUT, FoundMarker, MarkerStore, has_passed, no_store


def find_in_mongo(store: MarkerStore, event_id: str, records: Sequence[FoundRecord]) -> list[FoundMarker]:
    with (
        connect(store.address, app_name="tailrace (trace)", timeout=TIMEOUT) as client,
        translated_errors("reading the markers of projections"),
    ):
        database = client[store.place]
        if OFFSETS not in database.list_collection_names():
            raise no_store(store)
        offsets: dict[str, list[tuple[str, int, int]]] = {}
        for each in database[OFFSETS].find({}):
            name = each["_id"]
            place = (name["topic"], name["partition"], each.get("next_offset") or 0)
            offsets.setdefault(name["consumer_group"], []).append(place)
        groups = sorted(offsets)
        # The order of the fields matters to the server.
        wanted = [{"consumer_group": group, "event_id": event_id} for group in groups]
        found = {each["_id"]["consumer_group"]: each for each in database[MARKERS].find({"_id": {"$in": wanted}})}
    markers: list[FoundMarker] = []
    for group in groups:
        marker = found.get(group, {})
        at = marker.get("processed_at")
        markers.append(
            FoundMarker(
                store.name,
                group,
                marker.get("outcome"),
                at.isoformat() if at is not None else None,
                marker.get("entity_id", marker.get("entity")),
                marker.get("entity_version", marker.get("version")),
                has_passed(offsets[group], records),
            )
        )
    return markers
