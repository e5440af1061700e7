"""The table of known bugs at its limits."""

from __future__ import annotations

import pytest

from tailrace.check.codes import CODES
from tailrace.check.versions import BUGS, known_bugs, parsed


@pytest.mark.parametrize(
    ("product", "version", "fixed"),
    [
        ("Postgres", (14, 18), ["14.19"]),
        ("Postgres", (17, 5), ["17.6"]),
        ("Postgres", (17, 6), []),
        ("Postgres", (18, 0), []),
        ("MongoDB", (6, 0, 5), ["6.0.27", "6.0.12"]),
        ("MongoDB", (6, 0, 26), ["6.0.27"]),
        ("MongoDB", (6, 0, 27), []),
        ("MongoDB", (8, 2, 2), ["8.2.3"]),
        ("MongoDB", (8, 0, 17), []),
        ("librdkafka", (2, 4, 0), ["2.5.0"]),
        ("librdkafka", (2, 16, 0), []),
        ("Kafka", (3, 9), ["4.0"]),
        ("Kafka", (4, 1), []),
        ("Kafka", (), []),
    ],
)
def test_known_bugs(product: str, version: tuple[int, ...], fixed: list[str]) -> None:
    assert [release for _, release in known_bugs(product, version)] == fixed


@pytest.mark.parametrize(("text", "version"), [("3.9-IV0", (3, 9)), ("2.16.0", (2, 16, 0)), ("", ()), ("x.1", ())])
def test_versions_are_parsed(text: str, version: tuple[int, ...]) -> None:
    assert parsed(text) == version


def test_every_bug_has_a_code_and_a_link() -> None:
    for bug in BUGS:
        assert bug.code in CODES
        assert bug.link.startswith("https://")
