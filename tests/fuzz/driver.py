"""Runs a target on mutated inputs. A finding is an undocumented exception, or an input that takes too long."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fuzz.mutate import mutated
from fuzz.targets import TARGETS, Target
from tailrace.errors import TailraceError

CORPUS = Path(__file__).parent / "corpus"
HANG_SECONDS = 10.0
"""Of processor time: the machine may be busy."""


class Hang(BaseException):
    """An input takes too long. Not an Exception, so that no target handles it."""


@dataclass(frozen=True)
class Finding:
    target: str
    data: bytes
    error: BaseException

    def __str__(self) -> str:
        return f"{self.target}: {type(self.error).__name__}: {self.error} for {self.data[:200]!r}"


def seeds_of(name: str) -> list[bytes]:
    """The corpus of a target: valid inputs, and inputs of earlier findings."""
    return [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]


def check(name: str, data: bytes) -> Finding | None:
    """Runs one input."""
    target: Target = TARGETS[name]
    try:
        with _bounded():
            target.run(data)
    except (TailraceError, *target.errors):
        return None
    except (Exception, Hang) as error:  # noqa: BLE001 - that is what is looked for
        return Finding(name, data, error)
    return None


def fuzz(name: str, seed: int, *, going: Callable[[int], bool]) -> tuple[int, Finding | None]:
    """Runs inputs while `going` says so; returns their number, and the first finding."""
    seeds, chance, runs = seeds_of(name), random.Random(f"{name} {seed}"), 0
    while going(runs):
        runs += 1
        if (finding := check(name, mutated(chance, seeds))) is not None:
            return runs, finding
    return runs, None


def seconds(limit: float) -> Callable[[int], bool]:
    """Lets a target run for so long."""
    ends = time.monotonic() + limit
    return lambda _runs: time.monotonic() < ends


@contextmanager
def _bounded() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang(f"no result within {HANG_SECONDS:.0f} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
