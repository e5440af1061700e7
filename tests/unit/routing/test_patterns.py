"""The pattern languages: what matches, what is refused, and that the expression and the pieces agree."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.routing.patterns import Pattern, common_text, covers, glob, literal, matcher, subject


def accepts(pattern: Pattern, text: str) -> bool:
    """Matches with the pieces only, without the regular expression."""
    return common_text([pattern.pieces, literal(text).pieces]) == text


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("Order*", "order1", False),
        ("Order*", "Order", True),
        ("Order*", "MyOrder", False),
        ("Order", "OrderX", False),
        ("O?der", "Order", True),
        ("[OP]rder", "Prder", True),
        ("[!OP]rder", "Prder", False),
        ("[!OP]rder", "ärder", True),
        ("[a-c-]x", "-x", True),
        ("[]x]", "]", True),
        ("[!]x]", "]", False),
        ("[^a]", "^", True),
        ("[a", "[a", True),
        ("a.b", "axb", False),
        ("a*", "a\nb", True),
        ("a", "a\n", False),
        ("**a**", "a", True),
        ("*\U0001f600", "x\U0001f600", True),
    ],
)
def test_shell_patterns_are_case_sensitive(pattern: str, text: str, matches: bool) -> None:
    assert bool(matcher([glob(pattern)])(text)) is matches
    assert accepts(glob(pattern), text) is matches


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("rwa.stock.*", "rwa.stock.moved", True),
        ("rwa.stock.*", "rwa.stock", False),
        ("rwa.stock.*", "rwa.stock.moved.far", False),
        ("rwa.stock.*", "rwa.stock.", False),
        ("agent.run.>", "agent.run.a", True),
        ("agent.run.>", "agent.run.a.b.c", True),
        ("agent.run.>", "agent.run", False),
        ("agent.run.>", "agent.run.a..b", False),
        ("agent.run.>", "agent.run.a.", False),
        ("*.b", "a.b", True),
        ("*.b", ".b", False),
        (">", "a.b", True),
        (">", "", False),
        ("a", "a", True),
        ("[a]", "a", False),
        ("[a]", "[a]", True),
    ],
)
def test_subject_patterns_match_tokens(pattern: str, text: str, matches: bool) -> None:
    assert bool(matcher([subject(pattern)])(text)) is matches
    assert accepts(subject(pattern), text) or not matches


@pytest.mark.parametrize("text", ["a..b", ".a", "a.", "", "a.>.b", "a*", "a.b>", "**", "a.*b.c"])
def test_invalid_subject_patterns_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"token|end"):
        subject(text)


def test_a_reversed_range_is_refused() -> None:
    with pytest.raises(ValueError, match="empty range z-a"):
        glob("x[z-a]")


def test_properties_known_before_matching() -> None:
    assert (glob("Order").literal, glob("Order").prefix) == ("Order", "Order")
    assert (glob("Ord*r").literal, glob("Ord*r").prefix) == (None, "Ord")
    assert (glob("[O]r?").literal, glob("[O]r?").prefix) == (None, "Or")
    assert (subject("a.b").literal, subject("a.b").prefix) == ("a.b", "a.b")
    assert (subject("a.*.c").literal, subject("a.*.c").prefix) == (None, "a.")
    assert (subject(">").literal, subject(">").prefix) == (None, "")


@pytest.mark.timeout(20)
def test_a_pattern_of_many_stars_takes_no_exponential_time() -> None:
    assert not matcher([glob("*a" * 20 + "*b")])("a" * 5000)


GLOBS = st.lists(st.sampled_from([*"ab*?.", "[ab]", "[!a]", "[a-b.]", "[", "]", "!", "-"]), min_size=1, max_size=6)
WORDS = st.text("ab.[]!-", max_size=7)


@given(GLOBS.map("".join), WORDS)
def test_expression_and_pieces_and_the_shell_agree(text: str, word: str) -> None:
    try:
        pattern = glob(text)
    except ValueError:
        return
    assert bool(matcher([pattern])(word)) == accepts(pattern, word) == fnmatchcase(word, text)
    assert not accepts(pattern, word) or word.startswith(pattern.prefix)


SUBJECTS = st.lists(st.sampled_from(["a", "b", "ab", "*", ">"]), min_size=1, max_size=4).map(".".join)


@given(SUBJECTS, WORDS)
def test_the_pieces_of_a_subject_accept_what_it_matches(text: str, word: str) -> None:
    try:
        pattern = subject(text)
    except ValueError:
        return
    if matcher([pattern])(word):
        assert accepts(pattern, word)
        assert word.startswith(pattern.prefix)


@pytest.mark.parametrize(
    ("wide", "narrow", "known"),
    [
        (glob("Order*"), glob("OrderPlaced"), True),
        (glob("Order*"), glob("Order*Placed"), True),
        (glob("Order*"), glob("Ord*"), False),
        (glob("[a-m]?"), glob("[b-d][!x]"), True),
        (glob("[a-m]?"), glob("[b-n]x"), False),
        (glob("*"), glob("?*"), True),
        (glob("?*"), glob("*"), False),
        (subject("order.>"), subject("order.*"), True),
        (subject("order.>"), subject("order.*.>"), True),
        (subject("order.*"), subject("order.>"), False),
        (subject("*.b"), literal("a.b"), True),
        (subject("order.>"), glob("order.?*"), False),
    ],
)
def test_a_pattern_that_covers_another(wide: Pattern, narrow: Pattern, known: bool) -> None:
    assert covers(wide, narrow) is known


@given(GLOBS.map("".join) | SUBJECTS, GLOBS.map("".join) | SUBJECTS, WORDS, st.sampled_from([glob, subject]))
def test_a_covered_pattern_matches_nothing_else(
    one: str, other: str, word: str, parse: Callable[[str], Pattern]
) -> None:
    try:
        wide, narrow = parse(one), parse(other)
    except ValueError:
        return
    if covers(wide, narrow) and matcher([narrow])(word):
        assert matcher([wide])(word)
