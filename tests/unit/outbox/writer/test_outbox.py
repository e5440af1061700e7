"""Wrong use of `Outbox` is refused by name, before a database is asked."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tailrace.errors import ConfigError, EventInvalid
from tailrace.outbox import Outbox
from tailrace.testkit.recording import RecordingOutbox


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"marks": "row"}, "marks='row' is not possible"),
        ({"without_schema": "pass"}, "It is one of refuse, allow"),
        ({"topic": "orders"}, "topic='orders' has no effect"),
        ({"layout": "documents"}, "not a layout"),
    ],
)
def test_an_argument_that_has_no_meaning_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Outbox(**arguments)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"topic": "orders"}, "the topic 'orders' cannot be stored"),
        ({"aggregate": ("order", UUID(int=7))}, r"the aggregate's id UUID\(.*\), which is not text"),
        ({"aggregate": ("order", 0)}, "the aggregate's id 0, which is not text"),
        ({"key": 7}, "the key 7, which is not text"),
        ({"type": None}, "the type None, which is not text"),
    ],
)
def test_a_name_that_cannot_be_stored_is_refused(event: dict[str, Any], text: str) -> None:
    with pytest.raises(EventInvalid, match=text):
        RecordingOutbox().add(None, **{"type": "OrderPlaced", "payload": {}, "aggregate": ("order", "o-1"), **event})


def test_a_topic_needs_a_column() -> None:
    outbox = RecordingOutbox(columns={"stream": "topic"}, topic="orders")
    outbox.add(None, "OrderPlaced", {}, aggregate=("order", "o-1"))
    assert len(outbox.events) == 1
