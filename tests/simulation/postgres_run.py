"""One run of a Postgres pipeline: a service that writes, connectors that are restarted, faults, and the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulation.broker import Broker
from simulation.checks import InvariantBroken, Oracle
from simulation.instance import LETTERS, OFFSETS, TOPIC, make_supervisor, simulated
from simulation.kafka_client import KafkaClients
from simulation.network import RESTART, Network
from simulation.postgres import PostgresServer
from simulation.scheduler import Process, Simulation
from tailrace.errors import Action, Fenced, TailraceError
from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition, format_lsn
from tailrace.worker.supervisor import Supervisor

SETTLE_SECONDS = 900.0
"""After the last fault, everything must be published within this simulated time (I10)."""
RESTARTS = 40

History = Sequence[tuple[int, bool]]
"""Transactions as numbers of rows, and whether each commits."""


@dataclass
class PostgresHistory:
    """What the server has committed since the slot was created."""

    server: PostgresServer

    def committed_rows(self) -> list[str]:
        begin = self.server.slot.created_at if self.server.slot else self.server.end
        return [row for each in self.server.written if each.commit_lsn >= begin for row in each.rows]

    def covered(self, position: Position) -> int | None:
        assert isinstance(position, LsnPosition)
        slot = self.server.slot
        if position.creating or slot is None:
            return None
        rows = 0
        for each in self.server.written:
            if each.commit_lsn < slot.created_at:
                continue
            if each.end_lsn <= position.lsn:
                rows += len(each.rows)
            elif position.cut is not None and position.cut.commit_lsn == each.commit_lsn:
                rows += position.cut.rows
        return rows


@dataclass
class Outcome:
    """What a run has shown, besides its checks."""

    seed: object
    steps: int
    labels: list[str]
    injected: list[tuple[int, str, str]]
    transactions: int
    rows: int
    instances: int
    failures: list[str] = field(default_factory=list)


class PostgresRun:
    """Builds the servers and runs one seed. `plan` has faults by step; `rate` is their chance at other steps."""

    def __init__(
        self,
        seed: object,
        *,
        history: History | None = None,
        plan: Mapping[int, str] | None = None,
        rate: float = 0.0,
        instances: int = 1,
        trace: bool = False,
    ) -> None:
        self.seed = seed
        self.simulation = simulation = Simulation(seed)
        simulation.trace = [] if trace else None
        chance = simulation.random
        self.network = Network(simulation, plan, rate=rate)
        self.network.on_server_fault = self._server_fault
        self.broker = Broker(simulation)
        for topic, partitions in ((TOPIC, 2), (LETTERS, 1), (OFFSETS, 1)):
            self.broker.create(topic, partitions)
        self.server = PostgresServer(simulation)
        self.clients = KafkaClients(simulation, self.broker, self.network)
        self.clients.queue_records = chance.choice((2, 3, 100))
        self.oracle = Oracle(PostgresHistory(self.server), self.broker, rolled_back=lambda: self.server.rolled_back)
        self.broker.decided = self.oracle.decided
        self.server.confirmed = self._confirmed
        self._history = history or [
            (chance.choice((0, 1, 1, 2, 3, 9, 13)), chance.random() < 0.85) for _ in range(chance.randint(4, 14))
        ]
        self._wanted = instances
        self._instances = 0
        self._running: list[Supervisor] = []
        self._written = False
        self.failures: list[TailraceError] = []

    def run(self) -> Outcome:
        """Runs to the end and checks it. Raises what is broken."""
        simulation = self.simulation
        with simulated(simulation, self.server, self.clients, self.network):
            try:
                for number in range(self._wanted):
                    # Often at the same moment: both may find the pipeline free.
                    simulation.at(simulation.random.choice((0.0, 0.0, 0.4, 3.0)) * number, self._start)
                service = Process("service", "service")
                simulation.spawn(service, self._write)
                simulation.run(lambda: self._written, until=SETTLE_SECONDS)
                self.network.enabled = False
                done = simulation.run(self.oracle.finished, until=simulation.now + SETTLE_SECONDS)
                # A little longer: what is late must do no harm.
                simulation.run(lambda: False, until=simulation.now + 20.0)
                if not done or not self.oracle.finished():
                    raise InvariantBroken(f"I10: not everything is published: {self._state()}")
                self.oracle.check_end()
            finally:
                simulation.end()
        return Outcome(
            self.seed,
            self.network.steps,
            self.network.labels,
            self.network.injected,
            self.oracle.committed,
            len(self.oracle.source.committed_rows()),
            self._instances,
            [error.code for error in self.failures],
        )

    def _state(self) -> str:
        return f"stored {self.oracle.stored}, failures {[(each.code, each.what) for each in self.failures]}"

    def _start(self) -> None:
        """Starts one connector process, which is started again whenever it ends."""
        self._instances += 1
        host = self.simulation.random.choice(("one", "one", "two"))
        process = Process(f"connector-{self._instances}", host)

        def main() -> None:
            supervisor = make_supervisor(self.simulation)
            try:
                supervisor.run()
            except Fenced as error:
                self.failures.append(error)
            except TailraceError as error:
                self.failures.append(error)
                assert error.action is not Action.RETRY
                raise InvariantBroken(f"the pipeline FAILED with {error.code}: {error.what}") from error

        self.simulation.spawn(process, main)
        self._watch(process)

    def _watch(self, process: Process) -> None:
        """Starts the process again after it has ended, as an orchestrator does."""
        tasks = [task for task in self.simulation.tasks if task.process is process]
        if all(task.dead for task in tasks) or not process.alive:
            process.alive = False
            if self._instances < RESTARTS:
                self.simulation.at(self.simulation.random.choice((0.05, 1.0, 7.0)), self._start)
            return
        self.simulation.at(0.5, lambda: self._watch(process))

    def _write(self) -> None:
        """The service: transactions of any size, some rolled back, some rows invalid."""
        simulation = self.simulation
        chance = simulation.random
        simulation.sleep(chance.choice((0.05, 1.0)))
        count = 0
        for size, commits in self._history:
            rows = []
            for _ in range(size):
                count += 1
                rows.append(f"{chance.choice('abc')}-{count}" + ("x" if chance.random() < 0.1 else ""))
            (self.server.commit if commits else self.server.roll_back)(rows)
            if chance.random() < 0.2:
                self.server.persist()
            simulation.sleep(chance.choice((0.001, 0.02, 0.3, 2.0)))
        simulation.sleep(chance.choice((0.01, 1.0, 10.0)))
        self._written = True

    def _server_fault(self, fault: str) -> None:
        if fault == RESTART:
            self.server.kill(self.simulation.random.choice((0.3, 4.0)))
        else:
            self.server.end_sessions()

    def _confirmed(self, flush: int) -> None:
        stored = self.oracle.stored
        assert isinstance(stored, LsnPosition | None)
        if stored is None or stored.creating or flush > stored.lsn:
            raise InvariantBroken(f"I6: {format_lsn(flush)} is confirmed, stored is {stored}")
