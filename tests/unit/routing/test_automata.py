"""Exploring texts: the shortest first, none missed, and an end to every search."""

from __future__ import annotations

import pytest

from tailrace.routing.automata import (
    JOIN,
    AnyOf,
    Anything,
    Effort,
    OfAggregate,
    OfSubject,
    OfType,
    Pair,
    TooHard,
    alphabet,
    explore,
)
from tailrace.routing.patterns import glob, subject


def globs(*texts: str) -> AnyOf:
    return AnyOf([glob(text) for text in texts])


def test_the_first_text_is_a_shortest_one() -> None:
    assert next(explore([globs("Order*"), globs("*Placed")], [], Effort())) == ("OrderPlaced", frozenset())
    assert next(explore([globs("ab*"), globs("*bc")], [], Effort()))[0] == "abc"


def test_none_is_found_where_there_is_none() -> None:
    assert list(explore([globs("Order*"), globs("*x"), globs("?" * 5)], [], Effort())) == []


def test_texts_tell_what_else_they_meet() -> None:
    found = {met for _, met in explore([Anything(empty=False)], [globs("a*"), globs("*b")], Effort())}
    assert found == {frozenset(), frozenset({0}), frozenset({1}), frozenset({0, 1})}


def test_examples_are_readable() -> None:
    assert alphabet([globs("x[0-9]*")])[0].isalpha()
    assert next(explore([Anything(empty=False)], [], Effort()))[0] == "a"


def test_a_pair_has_a_subject_made_of_both() -> None:
    must = [Pair(), OfSubject(AnyOf([subject("order.*")])), OfType(globs("P*"))]
    assert next(explore(must, [], Effort()))[0] == f"order{JOIN}P"
    assert list(explore([*must, OfAggregate(globs("user"))], [], Effort())) == []


def test_without_an_aggregate_the_subject_is_the_type() -> None:
    must = [Pair(), OfSubject(AnyOf([subject("a.b")])), OfAggregate(globs("[!a]*", "a?*"))]
    assert list(explore(must, [], Effort())) == []
    whole = [Pair(), OfSubject(AnyOf([subject("a.b")])), OfType(globs("a.b"))]
    assert [text for text, _ in explore(whole, [], Effort())] == [f"{JOIN}a.b"]


def test_a_dot_may_stand_in_the_aggregate_as_well() -> None:
    must = [Pair(), OfSubject(AnyOf([subject("a.b.c")])), OfAggregate(globs("a.b"))]
    assert next(explore(must, [], Effort()))[0] == f"a.b{JOIN}c"


@pytest.mark.timeout(20)
def test_a_search_that_would_not_end_is_given_up() -> None:
    many = [globs(f"*{char}*") for char in "abcdefghijklmnopqrstuvwxyz"]
    with pytest.raises(TooHard):
        list(explore([Anything(empty=True)], many, Effort(100_000)))
