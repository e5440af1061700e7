"""A projection: topics in, handlers in the middle, a store at the end. What users declare.

    app = projection_app("order-summary")
    orders = Projection(app, "shop.orders", store=PostgresStore("postgresql://localhost/shop"))

    @orders.on("OrderPlaced")
    async def placed(event, effects):
        effects.upsert("order_summary", {"order_id": event.data["id"]}, {"state": "placed"})

The app's consumer hands each record to the worker of its partition, and that is all a projection has to do with it:
blocks, retries, commits and dead letters are the workers' own. See `docs/projections.md`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

from tailrace import backoff
from tailrace.errors import ConfigError, PositionMoved
from tailrace.event import Record
from tailrace.projections.core.apply import BatchResult, ProjectionSpec, StoredOffsetMoved
from tailrace.projections.core.dead_letters import Failure, letter
from tailrace.projections.core.decoding import Decode, parsed
from tailrace.projections.core.event import Event, EventFunction, read
from tailrace.projections.core.failure_policy import told
from tailrace.projections.core.handlers import Handler, Handlers, Model, RegisteredHandler, is_asynchronous
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.settings import OnFailure, OnReplay, Settings, Versions, key_of, version_header
from tailrace.projections.core.store import Partition, ProjectionStore
from tailrace.projections.core.tracing import tracing
from tailrace.projections.faust.app import ProjectionApp

H = TypeVar("H", bound=Handler)
T = TypeVar("T")
Start = Literal["earliest", "latest"]
log = logging.getLogger("tailrace.projections")
DAY = 86_400.0
FAREWELL_SECONDS = 2.0


class Projection:
    """See the module's docstring.

    - `events`, `within`: up to so many events, or what came within so many seconds, are one transaction (500, 0.05);
    - `max_attempts`, `time_limit`: how often an event is tried (5), and how long a handler may take each time (30 s);
    - `on_failure`: then it goes to the topic `letters` ("dead_letter"), or the worker stops ("halt");
    - `on_replay`: events told again are applied if they were not ("apply"), or passed over ("skip"), or passed over
      until the projection is made anew, which applies them ("rebuild");
    - `versions`: events carry versions of their entities; `entity` and `version` tell which;
    - `give_up`: after so many seconds without its database, or without progress, the worker exits (300);
    - `keep_markers`: how many days markers are kept, None for ever (30);
    - `start`: where to begin in a topic that was never read ("earliest").
    """

    def __init__(
        self,
        app: ProjectionApp,
        *topics: str,
        store: ProjectionStore[Any],
        name: str | None = None,
        letters: str | None = None,
        decode: Decode = parsed,
        entity: EventFunction | None = None,
        version: EventFunction = version_header,
        versions: Versions | None = None,
        start: Start = "earliest",
        events: int = Settings.events,
        within: float = Settings.within,
        max_attempts: int = Settings.max_attempts,
        time_limit: float = Settings.time_limit,
        on_failure: OnFailure = Settings.on_failure,
        on_replay: OnReplay = Settings.on_replay,
        give_up: float = Settings.give_up,
        keep_markers: float | None = 30.0,
    ) -> None:
        self.name = name or str(app.conf.id)
        if not topics:
            raise ConfigError(f"the projection {self.name} reads no topic", remedy="Name at least one after the app.")
        if versions is not None and entity is None and len(topics) > 1:
            raise ConfigError(
                f"{self.name} reads several topics with versions, but nothing tells its entities apart",
                why="The same key in two topics may be two entities.",
                remedy='Give `entity`, such as `lambda event: f"{event.partition.topic}/{event.key.decode()}"`.',
            )
        for what, function in (("entity", entity), ("version", version), ("decode", decode)):
            if function is not None and is_asynchronous(function):
                raise ConfigError(
                    f"`{what}` of {self.name} is asynchronous",
                    why="Its result would be a coroutine, and never be awaited.",
                    remedy="Give a plain function.",
                )
        self.app = app
        self.topics = topics
        self.store = store
        self.letters = letters or f"{self.name}.dead-letters"
        self.start: Start = start
        self.outcomes: Counter[str] = Counter()
        self.is_rebuilding = False
        """Whether it is being made anew: to handlers, all of history is told again."""
        self.is_finished = False
        self.handlers = Handlers(decode)
        self.spec = ProjectionSpec(
            self.name,
            self.handlers,
            Settings(
                events=events,
                within=within,
                max_attempts=max_attempts,
                time_limit=time_limit,
                on_failure=on_failure,
                on_replay=on_replay,
                versions=versions,
                give_up=give_up,
                keep_markers=None if keep_markers is None else keep_markers * DAY,
            ),
            entity or key_of,
            version,
            tracing(self.name),
        )
        self.workers: dict[Partition, PartitionWorker] = {}
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        self._held_up: dict[Partition, str] = {}
        self._replays: set[str] = set()
        self._open = False
        app.register(self)

    def on(self, *types: str, model: Model | None = None, deletes: bool = False) -> Callable[[H], H]:
        """Registers a handler for these types of events, or for all others if none is named.

        `model` (pydantic) is what `event.data` will be. `deletes` says that the entity is gone with this event.
        """
        for each in types:
            if not isinstance(each, str):
                raise ConfigError(
                    f"{self.name}: a handler for {each!r}, which is no type of events",
                    remedy='Name types as text: @projection.on("OrderPlaced"). For all others: @projection.on()',
                )

        def register(handler: H) -> H:
            self.handlers.add(types, RegisteredHandler(handler, model, deletes))
            return handler

        return register

    # What the app asks of it: workers for the partitions it is given.

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """An answer of the store; one that is away is asked again, until it is away for too long."""
        times, since = 0, time.monotonic()
        while True:
            try:
                return await ask()
            except Exception as error:
                if not self.store.is_transient(error) or time.monotonic() - since > self.spec.settings.give_up:
                    raise
                times += 1
                seconds = backoff.delay(times)
                self._tell(logging.WARNING, "waiting", error=told(error), retry_in=round(seconds, 1))
                await asyncio.sleep(seconds)

    async def open(self) -> None:
        """Opens its store, unless it is open."""
        if not self._open:
            await self.patiently(lambda: self.store.open(self.name))
            self._open = True

    async def close(self) -> None:
        await self.stop_workers()
        self._open = False
        await self.store.close()

    def take(self, topic: str, partition: int, offset: int, follows: int, message: Any) -> bool:  # noqa: ANN401
        """A record (Faust's message); whether its worker has it. A projection that is finished needs none."""
        worker = self.workers.get(Partition(topic, partition))
        if worker is None:
            return self.is_finished
        if offset >= worker.expected:
            stamp = int((message.timestamp or 0) * 1000)
            event = read(worker.partition, offset, message.key, message.value, message.headers or (), stamp)
            event.is_rebuild = self.is_rebuilding
            if event.replay_id is not None:
                self._meet(event.replay_id)
            worker.put(event, follows)
        return True

    def _meet(self, replay: str) -> None:
        """Says once of a replay that only a rebuild takes it up."""
        if self.spec.settings.on_replay == "rebuild" and replay not in self._replays:
            self._replays.add(replay)
            remedy = "tailrace project … --rebuild, when the replay is done: it applies what was not applied before"
            self._tell(logging.WARNING, "replay passed over", replay=replay, remedy=remedy)

    def start_worker(self, partition: Partition, start: int, furthest: int) -> None:
        if self.is_finished:
            return
        worker = PartitionWorker(partition, start, furthest, self.store, self.spec, self)
        self.workers[partition] = worker
        task = asyncio.create_task(worker.run(), name=f"{self.name} {partition}")
        task.add_done_callback(self._ended)
        self._tasks[partition] = task

    async def finish(self) -> None:
        """Ends the workers for good: a rebalance opens none again."""
        self.is_finished = True
        await self.stop_workers()

    async def stop_workers(self) -> None:
        """Ends them: what is not committed by now belongs to whoever gets the partitions next."""
        reached = {worker: self.reached(worker) for worker in self.workers.values()}
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self.workers.clear()
        self._held_up.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._open:
            await asyncio.gather(*(_bounded(worker.pass_over(offset)) for worker, offset in reached.items()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.app.fail(_for_people(self.name, error))

    # What workers ask of it.

    async def dead_letter(self, event: Event, failure: Failure) -> None:
        record = letter(event, failure, group=self.name, topic=self.letters)
        attempt = 0
        began = time.monotonic()
        while True:
            try:
                await self._send(record)
            except Exception as error:
                attempt += 1
                if time.monotonic() - began > self.spec.settings.give_up:
                    raise
                self._tell(logging.WARNING, "a dead letter cannot be written yet", error=told(error))
                await asyncio.sleep(backoff.delay(attempt))
            else:
                break
        self._tell(
            logging.WARNING,
            "set aside",
            reason=failure.reason.value,
            type=event.type,
            event_id=event.id,
            place=event.place,
            attempts=failure.attempts,
            topic=self.letters,
        )

    async def _send(self, record: Record) -> None:
        headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in record.headers]
        await self.app.producer.send_and_wait(
            record.topic,
            record.key,
            record.value,
            None,
            None,
            headers,  # type: ignore[arg-type]  # a header may be null, whatever Faust thinks
            transactional_id=None,
        )

    def committed(self, worker: PartitionWorker, applied: BatchResult) -> None:
        for outcome, count in applied.outcomes.items():
            self.outcomes[outcome] += count
        self.outcomes["duplicate"] += applied.duplicates

    def waiting_for(self, worker: PartitionWorker, error: BaseException | None) -> None:
        if error is None:
            if self._held_up.pop(worker.partition, None) is not None:
                self._tell(logging.INFO, "goes on", partition=str(worker.partition))
            return
        kind = type(error).__name__
        if self._held_up.get(worker.partition) != kind:
            self._held_up[worker.partition] = kind
            self._tell(logging.WARNING, "held up", partition=str(worker.partition), error=told(error))

    def _tell(self, level: int, what: str, **fields: object) -> None:
        log.log(level, what, extra={"fields": {"projection": self.name, **fields}})

    def reached(self, worker: PartitionWorker) -> int:
        return self.app.reader.reached().get(worker.partition, worker.next) if self.app.started else worker.next

    def missed(self, worker: PartitionWorker) -> None:
        self.app.reader.missed(worker.partition)

    def pause(self, worker: PartitionWorker) -> None:
        self.app.pause(worker.partition, self)

    def resume(self, worker: PartitionWorker) -> None:
        self.app.resume(worker.partition, self)

    def progress(self) -> Mapping[Partition, int]:
        """The next offsets that the store has committed."""
        return {partition: worker.next for partition, worker in self.workers.items()}


async def _bounded(farewell: Awaitable[None]) -> None:
    """Nothing depends on it, so nobody waits for it."""
    try:
        async with asyncio.timeout(FAREWELL_SECONDS):
            await farewell
    except Exception as error:  # noqa: BLE001 - as said
        log.debug("farewell: %s", type(error).__name__)


def _for_people(name: str, error: BaseException) -> BaseException:
    if isinstance(error, StoredOffsetMoved):
        return PositionMoved(
            f"{name}: {error}",
            why="The position was set back while this worker ran.",
            remedy="Start it again: it reads the stored position when it starts.",
        )
    return error
