"""`tailrace dlq` without servers: selections, payloads in an editor, and invalid fields."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.dlq.edit import compact, edited, indented
from tailrace.cli.dlq.selection import choose, moment, wanted
from tailrace.cli.dlq.view import part_at, printable, row, verdict
from tailrace.dlq.dead_letter import DeadLetter, DeadLetterFilter, DeadLetterId
from tailrace.dlq.redrive import pass_again
from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.event import Headers, OutboxEvent, Route
from tailrace.pipeline.processor import EventProcessor
from tailrace.records.plain import plain_record
from tailrace.schemas.messages import path_text
from tailrace.schemas.validation import ValidatedPayload

NOW = 1_000_000_000_000


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", None),
        ("30s", NOW - 30_000),
        ("15m", NOW - 900_000),
        ("2h", NOW - 7_200_000),
        ("3d", NOW - 259_200_000),
        ("1w", NOW - 604_800_000),
        ("2001-09-09T01:46:40Z", NOW),
        ("2001-09-09T03:46:40.001+02:00", NOW + 1),
    ],
)
def test_times_are_parsed(text: str, at: int | None) -> None:
    assert moment(text, NOW) == at


@pytest.mark.parametrize("text", ["yesterday", "2y", "h", "-1h", "2026-13-01"])
def test_invalid_times_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        moment(text, NOW)


def test_a_reason_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="typo") as caught:
        wanted(["typo"], [], [], "", "")
    assert "poison_message" in caught.value.remedy


@pytest.mark.parametrize(
    ("ids", "found", "all_open"),
    [
        ([], DeadLetterFilter(), False),
        (["0-1"], DeadLetterFilter(types=("A",)), False),
        (["0-1"], DeadLetterFilter(keys=("k",), since_ms=1), False),
        (["0-1"], DeadLetterFilter(), True),
        ([], DeadLetterFilter(types=("A",)), True),
        (["x"], DeadLetterFilter(), False),
    ],
)
def test_empty_and_ambiguous_selections_are_rejected(ids: list[str], found: DeadLetterFilter, all_open: bool) -> None:
    with pytest.raises(ConfigError):
        choose(ids, found, all_open=all_open, hint="Name some.")


def test_an_id_given_twice_is_selected_once() -> None:
    assert choose(["0-1", "1", "0-2"], DeadLetterFilter(keys=("k",)), hint="").ids == (
        DeadLetterId(0, 1),
        DeadLetterId(0, 2),
    )
    assert choose(None, DeadLetterFilter(), all_open=True, hint="").ids == ()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(values, st.booleans())
def test_indenting_changes_only_white_space(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert json.loads(indented(text)) == value
    assert compact(indented(text)) == text


def test_json_is_indented() -> None:
    assert indented('{"a": [1.10, {}], "b": [], "a": "x, {y}"}') == (
        '{\n  "a": [\n    1.10,\n    {}\n  ],\n  "b": [],\n  "a": "x, {y}"\n}'
    )
    assert indented("{nonsense") == compact("{nonsense") == "{nonsense"


def test_an_edit_changes_only_what_was_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "sed -i s/much/little/")
    assert edited(b'{"a": 1.10, "b": "much"}', "0-1") == b'{"a": 1.10, "b": "little"}'
    assert edited(b'{\n"b": "much"}', "0-1") == b'{\n  "b": "little"\n}'
    assert edited(b"not JSON, much", "0-1") == b"not JSON, little"
    assert edited(b"{}", "0-1") is None
    monkeypatch.setenv("EDITOR", "")
    monkeypatch.setenv("VISUAL", "true")
    assert edited(b'{"b": "much"}', "0-1") is None


@pytest.mark.parametrize(
    ("editor", "word"), [("", "no editor"), ("false", "ended with 1"), ("/does/not/exist", "does not start")]
)
def test_an_editor_that_fails(monkeypatch: pytest.MonkeyPatch, editor: str, word: str) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor)
    with pytest.raises(ConfigError, match=word):
        edited(b"{}", "0-1")
    with pytest.raises(ConfigError, match="not text"):
        edited(b"\xff", "0-1")


@pytest.mark.parametrize("path", [("items", 2, "price"), ("odd name", "it's"), ('"', "a"), (0, 1), ()])
def test_a_part_is_found_by_its_path(path: tuple[str | int, ...]) -> None:
    value: object = "here"
    for step in reversed(path):
        value = [None] * step + [value] if isinstance(step, int) else {step: value}
    assert part_at(value, path_text(path)) == "here"


@pytest.mark.parametrize(("value", "path"), [({}, "$.a"), ("text", "$[0]"), ([1], "$[1]"), ({"a": 1}, "$.….a")])
def test_a_path_without_a_part(value: object, path: str) -> None:
    with pytest.raises(LookupError):
        part_at(value, path)


def processor(explanation: str = "") -> EventProcessor:
    """A processor whose validation fails as the test wants."""

    def validate(event: OutboxEvent, topic: str) -> ValidatedPayload:
        if explanation:
            raise Rejected(Reason.SCHEMA_VALIDATION_FAILED, explanation, remedy="Fix it.")
        return None, None

    unused = cast(Any, None)
    return EventProcessor(unused, lambda _: Route("orders"), validate, plain_record, unused, frozenset(), 1, 1)


def letter(payload: bytes) -> DeadLetter:
    headers: Headers = [("tailrace.payload", b"original"), ("id", b"e"), ("type", b"T")]
    return DeadLetter(DeadLetterId(0, 1), 1, b"k", payload, headers)


def test_each_invalid_field_is_shown_with_its_part_of_the_payload() -> None:
    explanation = (
        'the payload violates version 1 of T: $.a: expected number, got "x; y, got z"; '
        "$.b[1]['c d']: expected at least 1, got 0; $: expected the field 'e', got an object of 2 fields without it"
    )
    now = verdict(partial(pass_again, processor(explanation)), letter(b'{"a": "x; y, got z", "b": [null, {"c d": 0}]}'))
    assert now["passes"] is False
    assert [tuple(field.values()) for field in now["fields"]] == [
        ("$.a", "number", '"x; y, got z"', '"x; y, got z"'),
        ("$.b[1]['c d']", "at least 1", "0", "0"),
        ("$", "the field 'e'", "an object of 2 fields without it", '{"a": "x; y, got z", "b": [null, {"c d": 0}]}'),
    ]


def test_a_verdict_without_fields() -> None:
    assert verdict(partial(pass_again, processor("no rule matches")), letter(b"{}"))["fields"] == []
    assert verdict(partial(pass_again, processor("$.a: expected x, got y")), letter(b"no JSON"))["fields"] == []
    assert verdict(partial(pass_again, processor()), letter(b"{}")) == {"passes": True, "topic": "orders"}


def test_a_short_explanation_begins_with_the_field() -> None:
    said = b'the payload violates version 1 of T: $.a: expected number, got "' + b"x" * 80 + b'" Remedy: Fix it.'
    explained = replace(letter(b"{}"), headers=[("tailrace.explanation", said)])
    shown = str(row(explained, None, with_state=False)["explanation"])
    assert shown.startswith("$.a: expected number, got")
    assert (len(shown), shown[-1]) == (60, "…")


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
