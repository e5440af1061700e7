"""Runs an example on real servers that it starts itself: `python -m examples.run order_summary`.

A service of the demo writes to its outbox, a connector publishes, the example's worker applies. Rows are shown as they
change. Half-way a fault happens that a projection must survive. The exit code is 1 if the projection differs from the
outbox in the end.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from examples.chain_indexer import run as chain_indexer
from examples.example import Example, Rows
from examples.inbox_faststream.oracle import InboxFastStream
from examples.inbox_kafka.oracle import InboxKafka
from examples.order_summary.oracle import OrderSummary
from examples.storage_outbox.oracle import StorageOutbox
from examples.streams_outbox.oracle import StreamsOutbox
from examples.transaction_mirror import run as transaction_mirror
from examples.user_cards.oracle import UserCards
from examples.user_outbox.oracle import UserOutbox
from tailrace.cli.output import print_error
from tailrace.errors import TailraceError
from tailrace.testkit.demo.display import Display, display_for
from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.stack import StackError, wait_until
from tailrace.testkit.workload.writer import Mix, WorkloadWriter

EXAMPLES: dict[str, type[Example[Any]]] = {
    "order_summary": OrderSummary,
    "user_cards": UserCards,
    "streams_outbox": StreamsOutbox,
    "storage_outbox": StorageOutbox,
    "user_outbox": UserOutbox,
    "inbox_kafka": InboxKafka,
    "inbox_faststream": InboxFastStream,
}
STANDALONE = {"chain_indexer": chain_indexer.run, "transaction_mirror": transaction_mirror.run}
"""Examples that need no connector beside a service."""
RATE = 20.0
"""Transactions per second: slow enough to follow on a terminal."""
KEYS = 12
MIX = Mix(invalid=0.0)
SHOWN = 3
LOOK_SECONDS = 0.5
START_TIMEOUT = 60.0
CATCH_UP_TIMEOUT = 120.0
DIFFERENT = 1


class Run:
    """One run of an example in an open environment. `close` stops the writers and the worker at any point."""

    def __init__(self, example: Example[Any], show: Display, *, seed: int) -> None:
        self._example = example
        self._show = show
        self._writers = [self._writer(seed), self._writer(seed + 1)]
        self._shown: Rows = {}

    def _writer(self, seed: int) -> WorkloadWriter:
        writer: WorkloadWriter = self._example.service.writer(seed=seed, keys=KEYS, mix=MIX)
        return writer

    def run(self, seconds: float) -> int:
        """Runs the example; returns the exit code."""
        example = self._example
        self._start("connector", example.service.connector.start, lambda: example.service.connector.ready)
        self._start("worker", example.worker.start, lambda: example.worker.ready)
        first, second = self._writers
        self._write(first, seconds / 2)
        first.stop()
        second.start(rate=RATE)
        self._watch(LOOK_SECONDS)
        example.disturb(first)
        self._show.note(example.FAULT, alarm=True)
        self._watch(seconds / 2)
        second.stop()
        return self._compare()

    def close(self) -> None:
        with ExitStack() as last:
            last.callback(self._example.worker.close)
            for writer in self._writers:
                last.callback(writer.stop)

    def _start(self, what: str, start: Callable[[], None], ready: Callable[[], bool]) -> None:
        start()
        wait_until(ready, START_TIMEOUT, what=f"the start of the {what}")
        self._show.note(f"{what} started")

    def _write(self, writer: WorkloadWriter, seconds: float) -> None:
        self._show.note(f"writing {RATE:.0f} transactions/s to {self._example.service.outbox}, some roll back")
        writer.start(rate=RATE)
        self._watch(seconds)

    def _watch(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._show_changes()
            time.sleep(LOOK_SECONDS)

    def _show_changes(self) -> None:
        rows = self._example.rows()
        changed = [key for key in rows if rows[key] != self._shown.get(key)]
        for key in changed[:SHOWN]:
            self._show.note(f"  {key:<14} {rows[key]}")
        if len(changed) > SHOWN:
            self._show.note(f"  and {len(changed) - SHOWN} more of {len(rows)}")
        for key in self._shown.keys() - rows.keys():
            self._show.note(f"  {key:<14} is gone")
        self._shown = rows

    def _compare(self) -> int:
        example = self._example
        self._show.note(f"writing ended; waiting for the projection to be what the {example.TRUTH} says")
        expected = example.expected()
        try:
            wait_until(lambda: example.rows() == expected and example.worker.ready, CATCH_UP_TIMEOUT)
        except StackError:
            self._show.note("it is not, in time", alarm=True)
        self._show_changes()
        # Stopped cleanly, so that everything it might still write is written before the final comparison.
        example.worker.stop()
        rows = example.rows()
        wrong = sorted(key for key in rows.keys() | expected.keys() if rows.get(key) != expected.get(key))
        for key in wrong:
            self._show.note(
                f"{key}: {rows.get(key, 'missing')}; by the {example.TRUTH}: {expected.get(key, 'none')}", alarm=True
            )
        events = len(example.service.in_outbox())
        verdict = f"{len(wrong)} differ" if wrong else f"the projection is what the {example.TRUTH} says"
        self._show.note(f"{events} events, {len(rows)} rows: {verdict}", alarm=bool(wrong))
        findings = example.audit(self._writers)
        for finding in findings:
            result = f"wrong: {', '.join(finding.wrong[:SHOWN])}" if finding.wrong else "as it must be"
            self._show.note(f"{finding.compared}: {result}", alarm=bool(finding.wrong))
        return DIFFERENT if wrong or any(finding.wrong for finding in findings) else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.run", description="Run an example on real servers.")
    parser.add_argument("example", choices=[*EXAMPLES, *STANDALONE])
    parser.add_argument("--seconds", type=float, default=6.0, help="how long to write")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))  # noqa: S311 - a workload, not a secret
    given = parser.parse_args(arguments)
    # Topics and groups of the examples have plain names, which may exist already on servers that are not ours.
    for name in [name for name in os.environ if name.startswith("TAILRACE_STACK_")]:
        del os.environ[name]
    try:
        if given.example in STANDALONE:
            return STANDALONE[given.example](given.seconds, given.seed)
        kind = EXAMPLES[given.example]
        with closing(display_for(sys.stdout)) as show, DemoEnvironment() as environment:
            kind.join(environment)
            environment.open(show.busy)
            show.note(environment.description())
            for service in environment.services:
                if isinstance(service, kind.SERVICE):
                    with closing(Run(kind(service), show, seed=given.seed)) as example_run:
                        return example_run.run(given.seconds)
            raise StackError(f"{given.example} needs a MongoDB, and there is none for this machine")
    except TailraceError as error:
        print_error(error, as_json=False)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
