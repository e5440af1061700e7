"""Values of a marker that cannot be stored, or that could not be recognised again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MarkerInvalid
from tailrace.inbox.marker import EVENT_ID_BYTES, GROUP_BYTES, checked_marker

ID = "0198c1f0-0000-7000-8000-00000000ABCD"


@pytest.mark.parametrize(
    ("event", "wrong", "remedy"),
    [
        (b"e-1", "the event id is bytes", "decode()"),
        (None, "the event id is NoneType", "str"),
        (17, "the event id is int", "str"),
        (["e"], "the event id is list", "str"),
        ("", "the event id is empty", "Dead-letter"),
        ("a\0b", "U+0000", "Dead-letter"),
        ("a\ud800", "half a surrogate pair", "Dead-letter"),
        ("x" * (EVENT_ID_BYTES + 1), "the event id has 1,001 bytes", "sha256"),
        ("ä" * 501, "the event id has 1,002 bytes", "sha256"),
    ],
)
def test_event_ids_that_are_refused(event: Any, wrong: str, remedy: str) -> None:
    with pytest.raises(MarkerInvalid) as refused:
        checked_marker(event, "g", None, None)
    assert wrong in refused.value.what
    assert remedy in refused.value.remedy
    assert refused.value.why


@pytest.mark.parametrize("group", [None, "", b"g", "g" * (GROUP_BYTES + 1), "\0"])
def test_consumer_groups_that_are_refused(group: Any) -> None:
    with pytest.raises(MarkerInvalid, match="consumer group"):
        checked_marker("e", group, None, None)


@pytest.mark.parametrize(("entity", "version"), [(7, 1), ("", 1), ("e", "1"), ("e", 1.0), ("e", True), ("e", 2**63)])
def test_entities_that_are_refused(entity: Any, version: Any) -> None:
    with pytest.raises(MarkerInvalid, match="entity"):
        checked_marker("e", "g", entity, version)


def test_a_uuid_is_the_same_id_as_its_text() -> None:
    assert checked_marker(UUID(ID), "g", None, None) == checked_marker(ID.lower(), "g", None, None)


@given(st.text(min_size=1), st.text(min_size=1))
def test_an_id_is_stored_as_it_is_or_refused(event: str, group: str) -> None:
    try:
        marker = checked_marker(event, group, None, None)
    except MarkerInvalid:
        return
    assert (marker.event_id, marker.consumer_group) == (event, group)
