"""One run of a projection: several workers in a group, a transactional store, and faults at every wait.

Real are the reader with its consumer thread, the offset coordinator, the projection, the partition workers and the
application of batches. Simulated are the group, the consumer, the event loop, and the store's connections.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import queue
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import tailrace.projections.core.partition_worker
import tailrace.projections.projection
import tailrace.projections.reader.consumer_thread
import tailrace.projections.reader.reader
from helpers.memory_store import MemoryDatabase, MemoryStore, MemoryTransaction
from simulation.broker import ABORTED, COMMITTED, Broker
from simulation.checks import InvariantBroken
from simulation.event_loop import SimulatedLoop
from simulation.group import Group, GroupConsumer
from simulation.scheduler import Process, Simulation
from simulation.stdlib import Condition, simulated_threading, simulated_time
from tailrace.backoff import Backoff
from tailrace.errors import StoreUnavailable
from tailrace.projections.core.event import Event
from tailrace.projections.core.store import EventOutcome, Partition
from tailrace.projections.projection import Projection
from tailrace.projections.reader.offset_coordinator import OffsetCoordinator, PartitionBounds
from tailrace.projections.reader.reader import EventReader

TOPIC = "orders"
TABLE = "state"
PARTITIONS = 3
SETTLE_SECONDS = 90.0
WORKERS = 30
POISON = "x"
"""The handler fails for events whose id ends with it: they are dead-lettered."""


class Lock:
    """A row lock of the database: it ends with its process."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._holder: Process | None = None

    async def acquire(self) -> bool:
        while self._holder is not None and self._holder.alive:
            await asyncio.sleep(self._simulation.delay(0.01))
        self._holder = self._simulation.current().process
        return True

    def release(self) -> None:
        self._holder = None


class Database(MemoryDatabase):
    """The store's database, with the fold that it must hold."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self.simulation = simulation
        self.rate = 0.0
        self._row_locks: dict[Any, Lock] = {}

    def lock(self, name: str, partition: Partition) -> Any:
        return self._row_locks.setdefault((name, partition), Lock(self.simulation))

    def applied(self) -> dict[str, list[str]]:
        """The ids of applied events, by key, in the order of their application."""
        return {str(row["key"]): list(row["ids"]) for row in self.rows.get(TABLE, {}).values()}

    def check(self) -> None:
        """I7: effects and markers of exactly the same events are committed."""
        marked = {
            each
            for records in self.records.values()
            for each, (_, outcome) in records.markers.items()
            if outcome is EventOutcome.APPLIED
        }
        ids = [each for found in self.applied().values() for each in found]
        if len(ids) != len(set(ids)):
            raise InvariantBroken(f"I7: applied twice: {sorted(each for each in set(ids) if ids.count(each) > 1)}")
        if marked != set(ids):
            raise InvariantBroken(f"I7: markers without effect or effects without marker: {sorted(marked ^ set(ids))}")


class Store(MemoryStore):
    """The store of one worker: requests take time, connections break, answers are lost."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._simulated = database

    @asynccontextmanager
    async def transaction(self, partition: Partition) -> AsyncIterator[MemoryTransaction]:
        database, simulation = self._simulated, self._simulated.simulation
        await self._wait()
        async with super().transaction(partition) as transaction:
            yield transaction
            await self._wait()
            simulation.current()  # the commit arrives
        database.check()
        await self._wait()
        if simulation.random.random() < database.rate:
            raise StoreUnavailable("the answer to the commit is lost", remedy="Try again.")

    async def _wait(self) -> None:
        simulation = self._simulated.simulation
        await asyncio.sleep(simulation.delay(0.03))
        if simulation.random.random() < self._simulated.rate:
            raise StoreUnavailable("the connection is broken", remedy="Try again.")


class App:
    """What the reader and projections need of `projections.faust.app`."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self.projections: list[Projection] = []
        self.conf = SimpleNamespace(id="app")
        self.reader: EventReader | None = None
        self.coordinator = OffsetCoordinator(self.projections)
        self.fail = fail
        self.letters: list[Any] = []

    def register(self, projection: Projection) -> None:
        self.projections.append(projection)

    async def send_record(self, record: Any) -> None:
        await asyncio.sleep(0.001)
        self.letters.append(record)


class ThreadFuture:
    """A `concurrent.futures.Future` whose `result` waits in simulated time."""

    def __init__(self, simulation: Simulation, future: Any) -> None:
        self._turn = Condition(simulation)
        self._future = future
        future.add_done_callback(lambda _: self._turn.wake_all())

    def result(self, timeout: float) -> Any:
        if not self._turn.wait_for(self._future.done, timeout):
            raise TimeoutError
        return self._future.result()


class SimpleQueue:
    def __init__(self, simulation: Simulation) -> None:
        self._turn = Condition(simulation)
        self._items: list[Any] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._turn.wake_all()

    def empty(self) -> bool:
        return not self._items

    def get(self, timeout: float | None = None) -> Any:
        if not self._turn.wait_for(lambda: self._items, timeout):
            raise queue.Empty
        return self._items.pop(0)


class ProjectionRun:
    """`rate` is the chance of a fault: at each store request, and every half second at a worker."""

    def __init__(self, seed: object, *, rate: float = 0.0, workers: int = 2, trace: bool = False) -> None:
        self.seed = seed
        self.simulation = simulation = Simulation(f"projection {seed}")
        simulation.trace = [] if trace else None
        self._rate = rate
        self._wanted = workers
        self.broker = Broker(simulation, partitions=PARTITIONS)
        self.broker.create(TOPIC, PARTITIONS)
        self.group = Group(simulation, self.broker, TOPIC)
        self.database = Database(simulation)
        self._processes: list[Process] = []
        self._loops: list[SimulatedLoop] = []
        self._written = False
        self.kills = 0
        self.events = 0

    def run(self) -> ProjectionRun:
        simulation = self.simulation
        with self._simulated():
            try:
                for _ in range(self._wanted):
                    simulation.at(simulation.random.random() * 3, self._start)
                simulation.spawn(Process("publisher"), self._publish)
                self.database.rate = self._rate / 5
                simulation.at(0.5, self._disturb)
                simulation.run(lambda: self._written, until=SETTLE_SECONDS)
                self.database.rate = self._rate = 0.0
                done = simulation.run(self._is_complete, until=simulation.now + SETTLE_SECONDS)
                simulation.run(lambda: False, until=simulation.now + 15.0)
                self.database.check()
                if not done or not self._is_complete():
                    raise InvariantBroken(f"I7: the projection is {self.database.applied()}, the fold {self._fold()}")
            finally:
                simulation.end()
                self._forget()
        return self

    def _forget(self) -> None:
        """Frees what killed processes have left: coroutines and tasks that are never awaited."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for loop in self._loops:
                for task in asyncio.all_tasks(loop):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                loop.close()
            self._loops.clear()
            gc.collect()

    def _fold(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for each in self.broker.committed(TOPIC):
            name = str(json.loads(each.value or b"")["id"])
            if not name.endswith(POISON):
                found.setdefault((each.key or b"").decode(), []).append(name)
        return found

    def _is_complete(self) -> bool:
        return self.database.applied() == self._fold()

    def _publish(self) -> None:
        """A connector: transactions, some of them aborted."""
        simulation, broker = self.simulation, self.broker
        chance = simulation.random
        epoch = broker.init_producer("connector")
        for number in range(chance.randint(10, 30)):
            records = []
            for _ in range(chance.choice((1, 1, 2, 5))):
                self.events += 1
                name = f"{self.events}" + (POISON if chance.random() < 0.05 else "")
                value = json.dumps({"id": name}).encode()
                headers = [("id", name.encode()), ("type", b"T")]
                records.append((TOPIC, value, chance.choice((b"a", b"b", b"c", b"d")), 1_700_000_000_000, headers))
            broker.append("connector", epoch, number + 1, records, "connector")
            simulation.sleep(chance.choice((0.001, 0.02, 0.5)))
            broker.end("connector", epoch, COMMITTED if chance.random() < 0.8 else ABORTED)
            while broker.producers["connector"].pending:
                simulation.sleep(0.005)
            simulation.sleep(chance.choice((0.001, 0.1, 1.0, 2.0)))
        simulation.sleep(chance.choice((0.01, 3.0)))
        self._written = True

    def _disturb(self) -> None:
        """Kills or suspends a worker, adds one, or lets the group rebalance."""
        simulation = self.simulation
        chance = simulation.random
        alive = [each for each in self._processes if each.alive]
        if alive and chance.random() < self._rate * 5:
            process = chance.choice(alive)
            fault = chance.choice(("kill", "pause", "rebalance", "join"))
            simulation.note(f"FAULT {fault} of {process}")
            if fault == "kill":
                self.kills += 1
                simulation.crash(process)
            elif fault == "pause":
                process.paused_until = simulation.now + chance.choice((0.3, 4.0, 15.0))
            elif fault == "rebalance":
                self.group.rebalance()
            else:
                self._start()
        simulation.at(0.5, self._disturb)

    def _start(self) -> None:
        if len(self._processes) >= WORKERS:
            return
        process = Process(f"worker-{len(self._processes) + 1}")
        self._processes.append(process)
        self.simulation.spawn(process, lambda: self._work(process))
        self._watch(process)

    def _watch(self, process: Process) -> None:
        if process.alive:
            self.simulation.at(0.5, lambda: self._watch(process))
        elif sum(each.alive for each in self._processes) < self._wanted:
            self.simulation.at(self.simulation.random.choice((0.05, 2.0)), self._start)

    def _work(self, process: Process) -> None:
        """The main thread of one worker process."""
        loop = SimulatedLoop(self.simulation)
        self._loops.append(loop)
        failed: list[BaseException] = []
        app: Any = App(failed.append)
        projection = Projection(
            app, TOPIC, store=Store(self.database), events=4, within=0.01, max_attempts=2, backoff=Backoff(jitter=0)
        )
        projection.on()(self._handler())

        async def main() -> None:
            app.reader = EventReader(app, asyncio.get_running_loop())
            app.reader.start()
            while not failed:
                await asyncio.sleep(0.2)

        loop.complete(main())
        if not isinstance(failed[0], StoreUnavailable):
            raise InvariantBroken(f"I10: {process} has failed: {failed[0]!r}") from failed[0]
        self.simulation.crash(process)

    def _handler(self) -> Callable[[Event, Any], Coroutine[Any, Any, None]]:
        simulation = self.simulation

        async def handle(event: Event, effects: Any) -> None:
            key = (event.key or b"").decode()
            await asyncio.sleep(simulation.delay(0.002))
            if event.id.endswith(POISON):
                raise ValueError("poison")
            row = await effects.fetch_one(TABLE, {"key": key})
            effects.upsert(TABLE, {"key": key}, {"ids": [*(row["ids"] if row else ()), event.id]})

        return handle

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        simulation, group = self.simulation, self.group
        consumer_thread = tailrace.projections.reader.consumer_thread
        reader = tailrace.projections.reader.reader
        revoked, deliver = EventReader.revoked, EventReader.deliver

        def start(thread: Any) -> None:
            simulation.spawn(simulation.current().process, thread.run)

        def delivered_late(self: Any, generation: int, records: Any, passed: Any) -> None:
            """The event loop is slow: deliveries keep their order, but other calls may come before them."""
            behind = simulation.random.choice((0.0, 0.0, 0.0, 0.02, 0.3, 1.5)) * simulation.random.random()
            self.last_delivery = max(getattr(self, "last_delivery", 0.0) + 1e-6, simulation.now + behind)
            simulation.at(self.last_delivery - simulation.now, lambda: deliver(self, generation, records, passed))

        class Queries:
            """The ends and beginnings of partitions, after a while."""

            def __init__(self, *_: Any) -> None: ...

            async def bounds(self, partitions: Any) -> Mapping[Partition, PartitionBounds]:
                await asyncio.sleep(simulation.delay(0.02))
                return {each: PartitionBounds(0, group.broker.last_stable(*each)) for each in partitions}

            async def ends(self, topics: Any) -> Mapping[Partition, int]:
                return {}

        clock = simulated_time(simulation)
        replaced: list[tuple[Any, str, Any]] = [
            (consumer_thread, "Consumer", lambda _config: GroupConsumer(group, simulation.current().process)),
            (consumer_thread, "queue", SimpleNamespace(SimpleQueue=lambda: SimpleQueue(simulation), Empty=queue.Empty)),
            (consumer_thread, "threading", simulated_threading(simulation)),
            (consumer_thread, "POLL_SECONDS", 0.5),  # fewer steps of waiting
            (consumer_thread.ConsumerThread, "start", start),
            (reader, "OffsetQueries", Queries),
            (reader, "client_config", lambda _app: {}),
            (reader, "consumer_config", lambda _app: {}),
            (reader, "time", clock),
            (reader.EventReader, "revoked", lambda self: ThreadFuture(simulation, revoked(self))),
            (reader.EventReader, "deliver", delivered_late),
            (tailrace.projections.core.partition_worker, "time", clock),
            (tailrace.projections.projection, "time", clock),
        ]
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with ExitStack() as stack:
                for owner, name, value in replaced:
                    stack.enter_context(mock.patch.object(owner, name, value))
                yield
        finally:
            logging.disable(level)
