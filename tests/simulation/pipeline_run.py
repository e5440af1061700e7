"""One run of a pipeline: a service that writes, connectors that are restarted, faults, and the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from simulation.broker import Broker
from simulation.checks import InvariantBroken, Oracle, SourceHistory
from simulation.instance import OFFSETS, TOPIC, make_supervisor, simulated
from simulation.kafka_client import KafkaClients
from simulation.network import FAULTS, Network
from simulation.scheduler import Process, Simulation
from tailrace.errors import Fenced, TailraceError
from tailrace.worker.supervisor import Supervisor

SETTLE_SECONDS = 900.0
"""After the last fault, everything must be published within this simulated time (I10)."""
RESTARTS = 40
NOTICED_SECONDS = 60.0
"""By then an instance that was replaced has noticed that (source.link_timeout)."""


class Database(SourceHistory, Protocol):
    """A simulated database with an outbox."""

    source: dict[str, Any]
    """The settings of the source."""
    rolled_back: set[str]

    def commit(self, rows: list[str]) -> None: ...
    def roll_back(self, rows: list[str]) -> None: ...
    def written_to(self) -> None:
        """Called after each transaction, for work in the background."""

    def fault(self, kind: str) -> None:
        """BREAK or RESTART."""

    def edges(self, simulation: Simulation, network: Network) -> list[tuple[Any, str, Any]]:
        """What replaces the driver: owner, name and value."""


History = Sequence[tuple[int, bool]]
"""Transactions as numbers of rows, and whether each commits."""


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


class PipelineRun:
    """Builds the servers and runs one seed. `plan` has faults by step; `rate` is their chance at other steps."""

    def __init__(
        self,
        seed: object,
        *,
        history: History | None = None,
        plan: Mapping[int, str] | None = None,
        rate: float = 0.0,
        kinds: Sequence[str] = FAULTS,
        instances: int = 1,
        tail: float = 20.0,
        expects: str = "",
        trace: bool = False,
    ) -> None:
        """`expects` is the code of an error with which the pipeline must stop, instead of publishing everything."""
        self.seed = seed
        self.simulation = simulation = Simulation(seed)
        simulation.trace = [] if trace else None
        chance = simulation.random
        self.network = Network(simulation, plan, rate=rate, kinds=kinds)
        self.network.on_server_fault = self._server_fault
        self.broker = Broker(simulation)
        for topic, partitions in ((TOPIC, 2), (OFFSETS, 1)):
            self.broker.create(topic, partitions)
        self.server = self.make_server(simulation)
        self.clients = KafkaClients(simulation, self.broker, self.network)
        self.clients.queue_records = chance.choice((2, 3, 100))
        self.oracle = Oracle(self.server, self.broker, rolled_back=lambda: self.server.rolled_back)
        self.broker.decided = self.oracle.decided
        self.broker.appended = self.oracle.appended
        self.prepared()
        self._history = history or [
            (chance.choice((0, 1, 1, 2, 3, 9, 13)), chance.random() < 0.85) for _ in range(chance.randint(4, 14))
        ]
        self._wanted = instances
        self._tail = tail
        self._expects = expects
        self.has_failed = False
        self._instances = 0
        self._running: list[tuple[Process, Supervisor]] = []
        self._written = False
        self.failures: list[TailraceError] = []

    def make_server(self, simulation: Simulation) -> Database:
        """The database of the pipeline."""
        raise NotImplementedError

    def _server_fault(self, kind: str) -> None:
        self.server.fault(kind)

    def prepared(self) -> None:
        """Called when all parts are there."""

    def run(self) -> Outcome:
        """Runs to the end and checks it. Raises what is broken."""
        simulation = self.simulation
        with simulated(simulation, self.clients, self.server.edges(simulation, self.network)):
            try:
                for number in range(self._wanted):
                    # Often at the same moment: both may find the pipeline free.
                    simulation.at(simulation.random.choice((0.0, 0.0, 0.4, 3.0)) * number, self._start)
                service = Process("service", "service")
                simulation.spawn(service, self._write)
                simulation.run(lambda: self._written, until=SETTLE_SECONDS)
                self.network.enabled = False
                if self._expects:
                    simulation.run(lambda: self.has_failed, until=simulation.now + SETTLE_SECONDS)
                    if not self.has_failed:
                        raise InvariantBroken(f"the pipeline goes on without {self._expects}: {self._state()}")
                    return self._outcome()
                done = simulation.run(self.oracle.finished, until=simulation.now + SETTLE_SECONDS)
                # A little longer: what is late must do no harm.
                simulation.run(lambda: False, until=simulation.now + self._tail)
                if not done or not self.oracle.finished():
                    raise InvariantBroken(f"I10: not everything is published: {self._state()}")
                self.oracle.check_end()
                if self._tail >= NOTICED_SECONDS:
                    self._check_one_publisher()
            finally:
                simulation.end()
        return self._outcome()

    def _outcome(self) -> Outcome:
        return Outcome(
            self.seed,
            self.network.steps,
            self.network.labels,
            self.network.injected,
            self.oracle.committed,
            len(self.server.committed_rows()),
            self._instances,
            [error.code for error in self.failures],
        )

    def _check_one_publisher(self) -> None:
        """With something to publish, an instance that was replaced notices that, and ends (I11)."""
        self.server.commit(["z-1"])
        self.simulation.run(lambda: False, until=self.simulation.now + self._tail)
        self.oracle.check_end()
        owners = [process for process, each in self._running if process.alive and each._ownership.taken]
        if len(owners) > 1:
            raise InvariantBroken(f"I11: {owners} all run the pipeline")

    def _state(self) -> str:
        return f"stored {self.oracle.stored}, failures {[(each.code, each.what) for each in self.failures]}"

    def _start(self) -> None:
        """Starts one connector process, which is started again whenever it ends."""
        self._instances += 1
        host = self.simulation.random.choice(("one", "one", "two"))
        process = Process(f"connector-{self._instances}", host)

        def main() -> None:
            supervisor = make_supervisor(self.simulation, self.server.source)
            self._running.append((process, supervisor))
            try:
                supervisor.run()
            except Fenced as error:
                self.failures.append(error)
            except TailraceError as error:
                self.failures.append(error)
                if error.code == self._expects:
                    self.has_failed = True
                    return
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
            self.server.written_to()
            simulation.sleep(chance.choice((0.001, 0.02, 0.3, 2.0)))
        simulation.sleep(chance.choice((0.01, 1.0, 10.0)))
        self._written = True
