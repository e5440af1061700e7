"""Tokens are shared, renewed before they expire, and asked for a bounded number of times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tailrace.auth import tokens
from tailrace.auth.tokens import TRIES, AccessToken, current
from tailrace.errors import TokenRefused, TokenUnavailable


@dataclass(frozen=True, eq=False)
class Provider:
    answer: Callable[[int], AccessToken]
    calls: list[int] = field(default_factory=list)

    def fetch(self) -> AccessToken:
        self.calls.append(1)
        return self.answer(len(self.calls))


def lives(seconds: float) -> Callable[[int], AccessToken]:
    return lambda number: AccessToken(f"token-{number}", time.time() + seconds)


def test_a_valid_token_is_shared() -> None:
    provider = Provider(lives(100))
    with ThreadPoolExecutor(8) as pool:
        found = {each.value for each in pool.map(lambda _: current(provider), range(50))}
    assert found == {"token-1"}


@pytest.mark.parametrize(("age", "number"), [(0.65, 1), (0.75, 2), (1.5, 2)])
def test_a_token_is_renewed_before_clients_ask_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch, age: float, number: int
) -> None:
    """librdkafka asks after four fifths of its life."""
    provider = Provider(lives(1000))
    current(provider)
    now = time.time()
    monkeypatch.setattr(tokens.time, "time", lambda: now + age * 1000)
    assert current(provider).value == f"token-{number}"


def test_an_unavailable_server_is_asked_a_bounded_number_of_times() -> None:
    def fail(_: int) -> AccessToken:
        raise TokenUnavailable("away")

    provider, pauses = Provider(fail), list[float]()
    with pytest.raises(TokenUnavailable):
        current(provider, sleep=pauses.append)
    assert len(provider.calls) == TRIES
    assert len(pauses) == TRIES - 1


def test_a_server_that_recovers() -> None:
    def third(number: int) -> AccessToken:
        if number < TRIES:
            raise TokenUnavailable("away")
        return AccessToken("late", time.time() + 60)

    assert current(Provider(third), sleep=lambda _: None).value == "late"


def test_a_refusal_is_not_repeated_but_asked_again_later() -> None:
    def refuse(number: int) -> AccessToken:
        if number == 1:
            raise TokenRefused("no")
        return AccessToken("now", time.time() + 60)

    provider = Provider(refuse)
    with pytest.raises(TokenRefused):
        current(provider, sleep=lambda _: pytest.fail("a refusal is not repeated"))
    assert current(provider).value == "now"


def test_a_slow_server_holds_up_only_its_own_clients() -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(_: int) -> AccessToken:
        asked.set()
        assert answer.wait(30)
        return AccessToken("slow", time.time() + 60)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(current, Provider(slow))
        assert asked.wait(30)
        assert current(Provider(lives(60))).value == "token-1"
        answer.set()
        assert waiting.result(30).value == "slow"


def test_a_token_is_never_shown() -> None:
    assert "token-1" not in repr(lives(1)(1))
