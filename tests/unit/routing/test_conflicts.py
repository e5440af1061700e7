"""Contradicting rules: no false alarm, and each overlap is reported with an example that both rules match."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.event import OutboxEvent
from tailrace.routing.conflicts import ComparedRule, check_rules, compared_rules, covering, overlap
from tailrace.routing.parsing import parse_spec
from tailrace.routing.router import Router
from tailrace.routing.specs import SpecOrigin, TopicSpec, in_order
from tailrace.routing.view import View

ORDERS = View("orders")
MAPPED = View(
    "orders", subject="subj", stream="dest", parts={"type": "type", "aggregateid": "key", "payload": "payload"}
)


def spec(topic: str, match: Any, **fields: Any) -> TopicSpec:
    lines = {("topic",): 1, ("match",): 2, ("key",): 3, ("match", "stream"): 4, ("match", "column"): 5}
    return parse_spec({"topic": topic, "match": match, **fields}, SpecOrigin(f"topics/{topic}.yaml", lines))


def refused(*specs: TopicSpec, view: View | None = ORDERS) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_rules(list(specs), view)
    return caught.value


OVERLAPS = [
    ({"type": "Order*"}, {"type": "*Placed"}, "type 'OrderPlaced'"),
    ({"type": "Order*"}, {"aggregate": "order"}, "aggregate 'order', type 'Order'"),
    ({"type": ["A", "B"]}, {"type": ["C", "B"]}, "type 'B'"),
    ({"type": "[a-m]*"}, {"type": "[m-z]?"}, "type 'ma'"),
    ({"column": {"tenant": "eu-*"}}, {"column": {"tenant": "*-1"}}, "column tenant 'eu-1'"),
    ({"column": {"tenant": "eu-*"}}, {"column": {"region": "x"}}, "column region 'x', column tenant 'eu-'"),
    ({"aggregate": "order"}, {"subject": "order.*"}, "aggregate 'order', type 'a'"),
    ({"subject": "a.*"}, {"subject": "*.b"}, "aggregate 'a', type 'b'"),
    ({"subject": "a.>"}, {"subject": "*.b.c"}, "aggregate 'a.b', type 'c'"),
    ({"pipeline": ["orders", "billing"]}, {"pipeline": "orders", "type": "A"}, "pipeline 'orders', type 'A'"),
]


@pytest.mark.parametrize(("one", "other", "example"), OVERLAPS)
def test_two_rules_that_can_match_the_same_event(one: Any, other: Any, example: str) -> None:
    error = refused(spec("a", one), spec("b", other))
    assert error.what.startswith("topics/b.yaml:2: ")
    assert "topics/a.yaml:2" in error.what
    assert error.what.endswith(example)
    assert "`priority`" in error.remedy
    check_rules([spec("a", one), spec("b", other, priority=1)], ORDERS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "Order*"}, {"type": "order*"}),
        ({"type": "Order*"}, {"type": "?order*"}),
        ({"type": "a?"}, {"type": "a??*"}),
        ({"type": "[a-m]*"}, {"type": "[n-z]*"}),
        ({"type": "Order*", "aggregate": "order"}, {"type": "Order*", "aggregate": "cart"}),
        ({"column": {"tenant": "eu-*"}}, {"column": {"tenant": "us-*"}}),
        ({"aggregate": "order"}, {"subject": "user.>"}),
        ({"aggregate": "a.b"}, {"subject": "*.*"}),
        ({"subject": "a.*"}, {"subject": "a.*.*"}),
        ({"subject": "a.*"}, {"subject": "a"}),
        ({"type": "A", "pipeline": "orders"}, {"type": "A", "pipeline": "billing"}),
    ],
)
def test_two_rules_that_cannot_match_the_same_event(one: Any, other: Any) -> None:
    check_rules([spec("a", one), spec("b", other)], ORDERS)
    check_rules([spec("a", one), spec("b", other)], None)


def test_two_rules_of_one_stream_may_overlap() -> None:
    check_rules([spec("a", {"type": "A*"}), spec("a", {"aggregate": "order"})], ORDERS)
    assert "can match" in refused(spec("a", {"type": "A*"}), spec("a", {"aggregate": "order"}, key="k")).what


def test_two_catch_all_rules_are_refused() -> None:
    error = refused(spec("a", "*"), spec("b", "*"))
    assert error.what == 'topics/b.yaml:2: match: "*" is given twice, here and in topics/a.yaml:2'


@pytest.mark.parametrize(
    ("others", "last"),
    [
        ([{"type": "Order*"}], {"type": "OrderPlaced"}),
        ([{"type": "A*"}, {"type": "B"}], {"type": ["Ab", "B"], "aggregate": "order"}),
        ([{"type": "*", "aggregate": ["x", "y"]}], {"aggregate": "x"}),
        ([{"subject": "order.*"}], {"aggregate": "order", "type": "Placed"}),
        ([{"column": {"t": "a*"}}], {"column": {"t": ["ab", "ac*"]}, "type": "X"}),
        ([{"type": "A", "pipeline": "orders"}, {"type": "A", "pipeline": "billing"}],
         {"type": "A", "pipeline": ["orders", "billing"]}),
    ],
)  # fmt: skip
def test_a_rule_that_can_never_win(others: list[Any], last: Any) -> None:
    before = [spec(f"before{number}", match, priority=number + 1) for number, match in enumerate(others)]
    error = refused(*before, spec("dead", last))
    assert error.what == "topics/dead.yaml:2: this rule (dead) can never win"
    assert "topics/before0.yaml:2" in error.why


@pytest.mark.parametrize(
    ("others", "last"),
    [
        ([{"type": "OrderP*"}], {"type": "Order*"}),
        ([{"type": "[A-M]*"}, {"type": "[!A-N]*"}], {"aggregate": "order"}),
        ([{"type": "A*", "aggregate": "x"}, {"type": "[!A]*", "aggregate": "y"}], {"aggregate": ["x", "y"]}),
        ([{"type": "[!A]*", "aggregate": "x"}, {"type": "A*", "aggregate": "y"}], {"aggregate": ["x", "y"]}),
        ([{"column": {"t": "*"}}], {"aggregate": "order"}),
        ([{"type": "A", "pipeline": "orders"}], {"type": "A"}),
        ([{"aggregate": "order", "type": "*.*"}], {"subject": "order.*"}),
    ],
)
def test_a_rule_that_wins_for_some_events(others: list[Any], last: Any) -> None:
    before = [spec(f"before{number}", match, priority=number + 1) for number, match in enumerate(others)]
    check_rules([*before, spec("alive", last)], ORDERS)


def test_a_rule_that_only_several_others_cover_together_is_not_reported() -> None:
    """This is the documented limit: the first match still wins, and the rule is only useless."""
    halves = [spec("a", {"type": "[A-M]*"}, priority=1), spec("b", {"type": "[!A-M]*"}, priority=2)]
    check_rules([*halves, spec("dead", {"aggregate": "order"}), spec("rest", "*")], ORDERS)


def test_a_subject_from_its_own_column_is_independent_of_the_type() -> None:
    before, after = spec("a", {"subject": "order.*"}, priority=1), spec("b", {"aggregate": "order", "type": "Placed"})
    assert "can never win" in refused(before, after, view=ORDERS).what
    check_rules([before, after], MAPPED)
    check_rules([before, after], None)
    apart = [spec("a", {"subject": "user.>"}), spec("b", {"aggregate": "order"})]
    check_rules(apart, ORDERS)
    check_rules(apart, None)
    assert "column subj 'user.a'" in refused(*apart, view=MAPPED).what


def test_a_mapped_column_is_the_field_it_is_mapped_to() -> None:
    assert "type 'A'" in refused(spec("a", {"type": "A"}), spec("b", {"column": {"type": "A"}}), view=MAPPED).what


def test_rules_of_other_pipelines_are_not_compared() -> None:
    both = [spec("a", {"type": "A", "pipeline": "billing"}), spec("b", {"type": "A", "pipeline": "billing"})]
    check_rules(both, ORDERS)
    assert "can match" in refused(*both, view=View("billing")).what
    assert "can match" in refused(*both, view=None).what


def test_a_rule_on_a_field_that_events_lack_is_refused() -> None:
    rule = spec("a", {"stream": "payments"})
    error = refused(rule)
    assert error.what.startswith("topics/a.yaml:4: match.stream needs a stream column")
    assert "outbox.columns.stream" in error.remedy
    check_rules([rule], MAPPED)
    check_rules([spec("a", {"stream": "payments", "pipeline": "billing"})], ORDERS)
    assert refused(spec("a", {"column": {"payload": "x"}}), view=MAPPED).what.startswith(
        "topics/a.yaml:5: match.column.payload"
    )
    assert refused(spec("a", {"type": "A"}, key="payload"), view=MAPPED).what.startswith("topics/a.yaml:3: key names")
    check_rules([spec("a", {"type": "A"}, key="aggregateid")], MAPPED)


@pytest.mark.timeout(20)
def test_patterns_of_many_wildcards_are_compared_quickly() -> None:
    before = [spec(f"t{n}", {"type": f"*{chr(97 + n)}?*{chr(98 + n)}*"}, priority=n + 1) for n in range(24)]
    last = {"type": "*" + "".join(f"{chr(97 + n)}*" for n in range(24)) + "?" * 30 + "*"}
    assert "can match" in refused(*before, spec("last", last), spec("other", {"type": "*z*y*x*"})).what


@pytest.mark.timeout(60)
def test_a_large_folder_is_compared_quickly() -> None:
    rules = [spec(f"t{n}", {"type": [f"Order{n}*", f"*Cart{n}x"], "aggregate": f"a{n}"}) for n in range(150)]
    rules += [spec(f"u{n}", {"subject": f"shop.{n}.>"}, priority=1) for n in range(150)]
    check_rules([*rules, spec("rest", "*")], ORDERS)


PATTERN = st.text("ab*?", min_size=1, max_size=3)
SUBJECTS = st.sampled_from(["a.*", "*.b", "a.>", "*.*.*", "b", "a.b", "*", "a.*.b"])
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "type": PATTERN | st.lists(PATTERN, min_size=1, max_size=2),
        "aggregate": PATTERN,
        "subject": SUBJECTS,
        "column": st.fixed_dictionaries({"t": PATTERN}),
    },
).filter(bool)
NAMES = ["".join(letters) for length in range(4) for letters in itertools.product("ab.", repeat=length)]
EVENTS = [
    OutboxEvent("e", type_name, aggregate, None, None, None, "p", 1, [("t", value)] if value is not None else [])
    for type_name in NAMES[1:]
    for aggregate in ["", "a", "b", "ab", "a.b", "a."]
    for value in (None, b"", b"a", b"ba")
]  # fmt: skip


def compiled(matches: list[Any]) -> tuple[list[ComparedRule], list[Router]]:
    specs = []
    for number, match in enumerate(matches):
        try:
            document = {"topic": f"t{number}", "match": match, "priority": len(matches) - number}
            specs.append(parse_spec(document, SpecOrigin()))
        except ConfigError:
            continue  # it matches everything
    return compared_rules(in_order(specs), ORDERS), [Router([one], None, view=ORDERS) for one in specs]


def matches(router: Router, event: OutboxEvent) -> bool:
    return router.explain(event)[0].matched


def as_event(example: dict[str, str]) -> OutboxEvent:
    extra: Any = [("t", example["column t"].encode())] if "column t" in example else []
    return OutboxEvent("e", example.get("type", "zz"), example.get("aggregate", "zz"), None, None, None, "p", 1, extra)


@settings(max_examples=150, deadline=None)
@given(MATCHES, MATCHES)
def test_reported_overlaps_are_real_and_others_are_found(one: Any, other: Any) -> None:
    """A subject is `<aggregate>.<type>`, which can be split in several ways: such overlaps may stay unreported."""
    rules, routers = compiled([one, other])
    if len(rules) < 2:
        return
    example = overlap(rules[0], rules[1])
    if example is not None:
        assert all(matches(router, as_event(example)) for router in routers), example
    elif not ("subject" in {*one, *other} and {"aggregate", "type"} & {*one, *other}):
        assert not [event for event in EVENTS if all(matches(router, event) for router in routers)]


@settings(max_examples=150, deadline=None)
@given(st.lists(MATCHES, min_size=2, max_size=4))
def test_a_rule_reported_as_covered_never_wins(listed: list[Any]) -> None:
    rules, routers = compiled(listed)
    if len(rules) < 2 or not covering(rules[-1], rules[:-1]):
        return
    *before, last = routers
    assert not [event for event in EVENTS if matches(last, event) and not any(matches(r, event) for r in before)]
