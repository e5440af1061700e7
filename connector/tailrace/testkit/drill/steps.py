"""The faults of a drill. Each injects one, and raises StepError unless it really happened."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.testkit.drill.outbox import BAD
from tailrace.testkit.stack.waiting import StackError, wait_until

if TYPE_CHECKING:
    from tailrace.testkit.drill.run import Drill

START_SECONDS = 120.0
CUT_EVERY = 0.3
BAD_TRANSACTIONS = 5
SECOND_WAITS = ("PipelineBusy", "SlotBusy")


class StepError(TailraceError):
    """A fault of a drill could not be injected, or the pipeline did not recover from it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A fault: its name, what happens, and the function that does it and describes the result."""

    name: str
    text: str
    inject: Callable[[Drill], str]
    postgres_only: bool = False


def start(drill: Drill) -> str:
    drill.start_instance()
    drill.start_writing()
    return "running"


def kill(drill: Drill) -> str:
    drill.instance.kill()
    if drill.instance.exit_code != -signal.SIGKILL:
        raise StepError("the connector was not killed", why=f"It ended with {drill.instance.exit_code}.")
    drill.start_instance()
    return "started again"


def stop(drill: Drill) -> str:
    code = drill.instance.stop()
    if code != 0:
        raise StepError("the connector did not stop in order", why=f"It ended with exit code {code}.")
    drill.start_instance()
    return "exit code 0, started again"


def suspend(drill: Drill) -> str:
    drill.instance.pause()
    try:
        time.sleep(drill.hold)
    finally:
        drill.instance.resume()
    return f"for {drill.hold:g} s"


def cut_database(drill: Drill) -> str:
    return _cut(drill, "database")


def cut_kafka(drill: Drill) -> str:
    return _cut(drill, "kafka")


def _cut(drill: Drill, link: str) -> str:
    count = drill.instance.cut(link)
    if not count:
        raise StepError(f"no connection to the {link} was cut", why="The connector had none.")
    return f"{count} connections"


def database_away(drill: Drill) -> str:
    return _away(drill, "database")


def kafka_away(drill: Drill) -> str:
    return _away(drill, "kafka")


def _away(drill: Drill, link: str) -> str:
    """Cuts every connection again and again, also new ones."""
    end, count = time.monotonic() + drill.hold, 0
    while time.monotonic() < end:
        count += drill.instance.cut(link)
        time.sleep(CUT_EVERY)
    if not count:
        raise StepError(f"no connection to the {link} was cut", why="The connector had none.")
    return f"{count} connections in {drill.hold:g} s"


def end_session(drill: Drill) -> str:
    count = wait_until(drill.outbox.end_sessions, START_SECONDS, what="a replication session")
    return f"{count} session"


def bad_payloads(drill: Drill) -> str:
    writer = drill.new_writer(BAD)
    for _ in range(BAD_TRANSACTIONS):
        writer.transaction()
    return f"{len(writer.written)} events that break their schema"


def second_instance(drill: Drill) -> str:
    """It must wait; then the first is killed, and it must take over."""
    first, second = drill.instance, drill.launch()

    def waits() -> bool:
        if not second.running:
            raise StepError(
                "the second instance ended", why=second.log_tail(), remedy="It should wait for the first one to end."
            )
        return bool(set(second.error_codes()) & set(SECOND_WAITS))

    try:
        wait_until(waits, START_SECONDS, what="a second instance that waits")
    except StackError as error:
        raise StepError(str(error), why=second.log_tail()) from None
    if not first.running:
        raise StepError("the first instance ended when the second was started", why=first.log_tail())
    first.kill()
    drill.instance = second
    drill.await_running()
    return "waited, and took over"


START = Step("start", "the scratch pipeline starts", start)
STEPS = (
    Step("kill", "kill -9 of the connector", kill),
    Step("cut-database", "connections to the database are cut", cut_database),
    Step("database-away", "the database cannot be reached", database_away),
    Step("end-session", "the replication session is ended in the database", end_session, postgres_only=True),
    Step("cut-kafka", "connections to Kafka are cut", cut_kafka),
    Step("kafka-away", "Kafka cannot be reached", kafka_away),
    Step("suspend", "the connector is suspended", suspend),
    Step("bad-payloads", "payloads that break their schema", bad_payloads),
    Step("second-instance", "a second instance is started, then the first is killed", second_instance),
    Step("stop", "SIGTERM under load", stop),
)
