"""The class that users declare a projection with: topics, handlers and a store.

    app = projection_app("order-summary")
    orders = Projection(app, "shop.orders", store=PostgresStore("postgresql://localhost/shop"))

    @orders.on("OrderPlaced")
    async def placed(event, effects):
        effects.upsert("order_summary", {"order_id": event.data["id"]}, {"state": "placed"})

The app's consumer passes each record to the worker of its partition, which does the rest (`core/partition_worker.py`).
See `docs/projections.md`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import Message

from tailrace.backoff import Backoff
from tailrace.errors import ConfigError, PositionMoved
from tailrace.projections.core.apply import BatchResult, StoredOffsetMoved
from tailrace.projections.core.decoding import Decode, decode_json
from tailrace.projections.core.event import Event, EventFunction, read_event
from tailrace.projections.core.failures import Failure, dead_letter_record, log_text
from tailrace.projections.core.handlers import Handler, Handlers, Model, RegisteredHandler, is_asynchronous
from tailrace.projections.core.metrics import ProjectionMetrics
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.settings import OnFailure, OnReplay, ProjectionSpec, Settings
from tailrace.projections.core.store import BlockStore, Partition, ProjectionStore
from tailrace.projections.core.tracing import tracing
from tailrace.projections.core.versions import Versions, key_of, version_header
from tailrace.projections.faust.app import ProjectionApp
from tailrace.projections.reader.offset_coordinator import Start

H = TypeVar("H", bound=Handler)
T = TypeVar("T")
log = logging.getLogger("tailrace.projections")
DAY = 86_400.0
LAST_OFFSET_SECONDS = 2.0


class Projection:
    """See the module's docstring.

    - `events`, `within`: one transaction holds up to so many events, or those of so many seconds (500, 0.05);
    - `max_attempts`, `time_limit`: how often an event is tried (5), and how long a handler may take each time (30 s);
    - `on_failure`: then it is written to the topic `letters` ("dead_letter"), or the worker stops ("halt");
    - `on_replay`: replayed events are applied unless they were before ("apply"), or skipped ("skip"), or skipped until
      a rebuild, which applies them ("rebuild");
    - `versions`: events carry versions of their entities; the functions `entity` and `version` return both;
    - `give_up`: the worker exits after so many seconds without its database, or without progress (300);
    - `backoff`: the delays between attempts (`Backoff(base=1, maximum=60, multiplier=2, jitter=0.25)`, in seconds);
    - `keep_markers`: how many days markers are kept, None for ever (30);
    - `start`: where to start in a topic that was never read ("earliest").
    """

    def __init__(
        self,
        app: ProjectionApp,
        *topics: str,
        store: ProjectionStore[Any],
        name: str | None = None,
        letters: str | None = None,
        decode: Decode = decode_json,
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
        backoff: Backoff = Settings.backoff,
    ) -> None:
        self.name = name or str(app.conf.id)
        if not topics:
            raise ConfigError(f"the projection {self.name} reads no topic", remedy="Name at least one after the app.")
        if versions is not None and entity is None and len(topics) > 1:
            raise ConfigError(
                f"{self.name} reads several topics with versions, but has no `entity` function",
                why="The same key in two topics may be two entities.",
                remedy='Give `entity`, such as `lambda event: f"{event.partition.topic}/{event.key.decode()}"`.',
            )
        if versions is not None and isinstance(store, BlockStore) and store.undoes_blocks:
            raise ConfigError(
                f"{self.name} has versions, and its store can undo blocks",
                why="A rollback does not undo versions: what replaces an undone event would be skipped as old.",
                remedy="Remove `versions`: blocks come in order. Or remove `keep_blocks` of the store.",
            )
        for argument, function in (("entity", entity), ("version", version), ("decode", decode)):
            if function is not None and is_asynchronous(function):
                raise ConfigError(
                    f"`{argument}` of {self.name} is asynchronous",
                    why="Its result would be a coroutine that is never awaited.",
                    remedy="Give a plain function.",
                )
        self.app = app
        self.topics = topics
        self.store = store
        self.letters = letters or f"{self.name}.dead-letters"
        self.start: Start = start
        self.metrics = ProjectionMetrics()
        self.is_rebuilding = False
        """Whether this is the shadow copy of a rebuild: handlers see all events as replayed."""
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
                backoff=backoff,
            ),
            entity or key_of,
            version,
            tracing(self.name),
        )
        self.workers: dict[Partition, PartitionWorker] = {}
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        self.blocked_partitions: dict[Partition, str] = {}
        """The kind of error after which each of these partitions is retried."""
        self._replays: set[str] = set()
        self._open = False
        app.register(self)

    def on(self, *types: str, model: Model | None = None, deletes: bool = False) -> Callable[[H], H]:
        """Registers a handler for these event types, or for all other types if none is named.

        `model` (pydantic) is the type of `event.data`. `deletes` says that the event deletes its entity.
        """
        for each in types:
            if not isinstance(each, str):
                raise ConfigError(
                    f"{self.name}: a handler for {each!r}, which is not an event type",
                    remedy='Name types as text: @projection.on("OrderPlaced"). For all others: @projection.on()',
                )

        def register(handler: H) -> H:
            self.handlers.add(types, RegisteredHandler(handler, model, deletes))
            return handler

        return register

    # Called by the app.

    async def retry_store(self, request: Callable[[], Awaitable[T]]) -> T:
        """Calls the store; after a transient error it tries again, until `give_up` has passed."""
        retries, since = 0, time.monotonic()
        while True:
            try:
                return await request()
            except Exception as error:
                if not self.store.is_transient(error) or time.monotonic() - since > self.spec.settings.give_up:
                    raise
                retries += 1
                seconds = self.spec.settings.backoff.delay(retries)
                self._log(logging.WARNING, "waiting", error=log_text(error), retry_in=round(seconds, 1))
                await asyncio.sleep(seconds)

    async def open(self) -> None:
        """Opens its store, unless it is open."""
        if not self._open:
            await self.retry_store(lambda: self.store.open(self.name))
            self._open = True

    async def close(self) -> None:
        await self.stop_workers()
        self._open = False
        await self.store.close()

    def receive(self, partition: Partition, messages: Sequence[Message]) -> None:
        """Passes records of a partition to its worker; those that it has already are ignored."""
        worker = self.workers.get(partition)
        if worker is None:
            if not self.is_finished:
                raise RuntimeError(f"{self.name} has no worker for {partition}")
            return
        for message in messages:
            offset: int = message.offset()  # type: ignore[assignment]  # a record of a log has one
            if offset < worker.expected:
                continue
            headers, unreadable = _headers(message)
            event = read_event(partition, offset, message.key(), message.value(), headers, message.timestamp()[1])
            event.unreadable = unreadable
            event.is_rebuild = self.is_rebuilding
            if event.replay_id is not None:
                self._warn_of_replay(event.replay_id)
            worker.put(event)

    def _warn_of_replay(self, replay: str) -> None:
        """Logs once for each replay that only a rebuild applies it."""
        if self.spec.settings.on_replay == "rebuild" and replay not in self._replays:
            self._replays.add(replay)
            remedy = "run `tailrace project … --rebuild` when the replay is done: it applies the skipped events"
            self._log(logging.WARNING, "replay skipped", replay=replay, remedy=remedy)

    def start_worker(self, partition: Partition, start: int, furthest: int) -> None:
        if self.is_finished:
            return
        worker = PartitionWorker(partition, start, furthest, self.store, self.spec, self)
        self.workers[partition] = worker
        self.metrics.was_assigned = True
        task = asyncio.create_task(worker.run(), name=f"{self.name} {partition}")
        task.add_done_callback(self._ended)
        self._tasks[partition] = task

    async def finish(self) -> None:
        """Stops the workers for good: a rebalance starts none again."""
        self.is_finished = True
        await self.stop_workers()

    async def stop_workers(self) -> None:
        """Stops the workers; the next owner of a partition applies what they have not committed."""
        reached = {worker: self.reached(worker) for worker in self.workers.values()}
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self.workers.clear()
        self.blocked_partitions.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._open:
            await asyncio.gather(*(_store_last_offset(worker, offset) for worker, offset in reached.items()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, StoredOffsetMoved):
            error = PositionMoved(
                f"{self.name}: {error}",
                why="The position was set back while this worker ran.",
                remedy="Restart the worker: it reads the stored position when it starts.",
            )
        self.app.fail(error)

    # Called by partition workers.

    async def dead_letter(self, event: Event, failure: Failure) -> None:
        record = dead_letter_record(event, failure, group=self.name, topic=self.letters)
        attempt = 0
        began = time.monotonic()
        while True:
            try:
                await self.app.send_record(record)
            except Exception as error:
                attempt += 1
                if time.monotonic() - began > self.spec.settings.give_up:
                    raise
                self._log(logging.WARNING, "a dead letter cannot be written yet", error=log_text(error))
                await asyncio.sleep(self.spec.settings.backoff.delay(attempt))
            else:
                break
        self.metrics.dead_letters[failure.reason.value] += 1
        self._log(
            logging.WARNING,
            "dead-lettered",
            reason=failure.reason.value,
            type=event.type,
            event_id=event.id,
            location=event.location,
            attempts=failure.attempts,
            topic=self.letters,
        )

    def committed(self, worker: PartitionWorker, result: BatchResult) -> None:
        self.metrics.committed(worker.partition.topic, result)

    def blocked(self, worker: PartitionWorker, error: BaseException | None) -> None:
        """Logs when a partition is blocked, once for each kind of error, and when it makes progress again."""
        if error is None:
            if self.blocked_partitions.pop(worker.partition, None) is not None:
                self._log(logging.INFO, "resumed", partition=str(worker.partition))
            return
        self.metrics.retries["store" if self.store.is_transient(error) else "event"] += 1
        kind = type(error).__name__
        if self.blocked_partitions.get(worker.partition) != kind:
            self.blocked_partitions[worker.partition] = kind
            self._log(logging.WARNING, "blocked", partition=str(worker.partition), error=log_text(error))

    def _log(self, level: int, message: str, **fields: object) -> None:
        log.log(level, message, extra={"fields": {"projection": self.name, **fields}})

    def reached(self, worker: PartitionWorker) -> int:
        reader = self.app.reader
        return worker.next if reader is None else reader.reached_of(worker.partition, worker.next)

    def pause(self, worker: PartitionWorker) -> None:
        if self.app.reader is not None:
            self.app.reader.hold(worker.partition, self)

    def resume(self, worker: PartitionWorker) -> None:
        if self.app.reader is not None:
            self.app.reader.release(worker.partition, self)

    def progress(self) -> Mapping[Partition, int]:
        """Returns the next offsets that the store has committed."""
        return {partition: worker.next for partition, worker in self.workers.items()}


async def _store_last_offset(worker: PartitionWorker, reached: int) -> None:
    """Stores how far the log was read when a worker stops. Nothing depends on it, so errors are only logged."""
    try:
        async with asyncio.timeout(LAST_OFFSET_SECONDS):
            await worker.store_reached(reached)
    except Exception as error:  # noqa: BLE001 - see the docstring
        log.debug("the last offset was not stored: %s", type(error).__name__)


def _headers(message: Message) -> tuple[list[tuple[str, bytes | None]], str | None]:
    """Returns the headers of a record; if the client cannot decode them, none and the reason."""
    try:
        found: Any = list(message.headers() or ())
    except (SystemError, UnicodeDecodeError):
        return [], "the name of a header is not UTF-8"
    return found, None
