"""Topic templates: valid ones, and events for which they give no topic."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.routing.template import Template


@pytest.mark.parametrize("aggregate", ["", "a b", "é", "x" * 240, "a/b", "a\n"])
def test_a_template_that_gives_no_legal_name_rejects_the_event(aggregate: str) -> None:
    with pytest.raises(Rejected) as caught:
        Template("outbox.event.{aggregate}").topic(aggregate, "OrderPlaced")
    assert caught.value.reason is Reason.PERMANENT_FAILURE
    assert len(caught.value.explanation) < 500


@pytest.mark.parametrize("aggregate", [".", "..", "__consumer_offsets"])
def test_an_event_cannot_reach_kafkas_own_topics(aggregate: str) -> None:
    with pytest.raises(Rejected):
        Template("{aggregate}").topic(aggregate, "OrderPlaced")


def test_a_template_may_use_both_fields_or_none() -> None:
    assert Template("{aggregate}.{type}").topic("order", "OrderPlaced") == "order.OrderPlaced"
    assert Template("all").topic("", "OrderPlaced") == "all"


def test_a_template_may_be_the_stream_that_the_event_names() -> None:
    assert Template("{stream}").topic("order", "OrderPlaced", "shop.orders") == "shop.orders"
    assert Template("eu.{stream}.{type}").fields == ("stream", "type")
    assert Template("all").fields == ()


@pytest.mark.parametrize("stream", ["", "a b", "a/b", "..", "__consumer_offsets", "x" * 250])
def test_a_stream_that_is_not_a_topic_name_rejects_the_event(stream: str) -> None:
    with pytest.raises(Rejected) as caught:
        Template("{stream}").topic("order", "OrderPlaced", stream)
    assert caught.value.reason is Reason.PERMANENT_FAILURE
    assert len(caught.value.explanation) < 500


@pytest.mark.parametrize(
    "template",
    [
        "",
        "a b",
        "{x}",
        "{}",
        "{0}",
        "{aggregate.x}",
        "{aggregate[0]}",
        "{stream!r}",
        "{streams}",
        "{type!r}",
        "{type:>99}",
        "{",
        "}",
        "{{a}}",
        "__{type}",
        "x" * 249 + "{type}",
    ],
)
def test_templates_that_cannot_work_are_refused_at_once(template: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Template(template)
    assert caught.value.remedy
