"""A topic counts as missing only after several requests: a broker that starts may list none for a moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.kafka import topics


class Admin:
    """Answers like a broker that learns its topics one request after the other."""

    def __init__(self, *looks: tuple[str, ...]) -> None:
        self._looks = list(looks)

    def list_topics(self, **_: Any) -> SimpleNamespace:
        names = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        found = {name: SimpleNamespace(error=None, partitions={0: SimpleNamespace(replicas=[1])}) for name in names}
        return SimpleNamespace(topics=found)


@pytest.mark.parametrize(
    ("looks", "gone"),
    [
        ([("a", "b")], []),
        ([(), ("a",), ("a", "b")], []),
        ([("b",), ("a",)], []),
        ([("a",)], ["b"]),
        ([()], ["a", "b"]),
    ],
)
def test_topics_that_stay_unknown_are_absent(
    looks: list[tuple[str, ...]], gone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "ABSENCE_PAUSES", (0.0, 0.0, 0.0))
    admin: Any = Admin(*looks)
    assert topics.absent(admin, ["a", "b"]) == gone
