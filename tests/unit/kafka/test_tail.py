"""Which topics belong to a pipeline."""

from __future__ import annotations

import pytest

from tailrace.kafka.tail import topic_matcher

NEVER = {"tailrace-offsets", "p.dead-letters"}


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [
        ("shop.orders", True),
        ("outbox.event.order", True),
        ("outbox.event.a.b-c_D", True),
        ("outbox.event.", False),
        ("outboxXevent.order", False),
        ("x.outbox.event.order", False),
        ("other", False),
    ],
)
def test_topics_match_by_name_or_template(topic: str, wanted: bool) -> None:
    assert topic_matcher({"shop.orders"}, "outbox.event.{aggregate}", NEVER)(topic) is wanted


def test_a_template_that_matches_everything_excludes_internal_topics() -> None:
    assert topic_matcher(set(), "events.{stream}", NEVER)("events.billing")
    wanted = topic_matcher(set(), "{aggregate}", NEVER)
    assert wanted("order")
    assert not any(wanted(topic) for topic in (*NEVER, "__consumer_offsets"))


def test_the_dead_letter_topic_matches_if_named() -> None:
    assert topic_matcher({"p.dead-letters"}, None, NEVER)("p.dead-letters")
    assert not topic_matcher({"a"}, None, NEVER)("b")
