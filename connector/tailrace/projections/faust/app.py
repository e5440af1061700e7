"""The Faust app of projections: `projection_app(name)` instead of `faust.App(name)`.

Otherwise it is an ordinary Faust app: its own agents, timers and tasks run next to the projections, and both
`tailrace project module:app` and `faust -A module worker` start it. The settings that projections rely on are set here,
and checked when the app starts (`app_checks.py`), since environment variables override them.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import faust
from aiokafka import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from faust.app.base import BootStrategy
from faust.types import StreamT, TopicT
from faust.types.agents import AgentT
from faust.types.settings import Settings

from tailrace import backoff
from tailrace.errors import AgentCrashed, AgentEnded, ConfigError
from tailrace.event import Record
from tailrace.projections.core.handover import Handover
from tailrace.projections.core.store import ProjectionStore, ShareableStore
from tailrace.projections.faust.agent_stream import AgentFunction, AgentStream, run_agent
from tailrace.projections.faust.app_checks import check_app
from tailrace.projections.faust.credentials import missing_token
from tailrace.projections.faust.event_channel import EventChannel
from tailrace.projections.faust.maintenance import Maintenance
from tailrace.projections.faust.topics import connection, require_certificates
from tailrace.projections.reader.offset_coordinator import OffsetCoordinator
from tailrace.projections.reader.reader import EventReader

if TYPE_CHECKING:
    from tailrace.projections.projection import Projection

DEFAULTS: dict[str, Any] = {
    "processing_guarantee": "at_least_once",
    # A dead worker is noticed after 10 s, not after a minute.
    "broker_session_timeout": 10.0,
    "broker_heartbeat_interval": 3.0,
    "broker_request_timeout": 30.0,
    # New topics and partitions are found within half a minute, not five.
    "consumer_metadata_max_age_ms": 30_000,
    "key_serializer": "raw",
    "value_serializer": "raw",
    "stream_wait_empty": False,
    "web_enabled": False,
    # Faust creates topics only if the app has tables: otherwise it needs none.
    "topic_allow_declare": False,
    "topic_disable_leader": True,
    "store": "memory://",
    # Without standbys any Kafka client can be in the group; Faust's own assignor needs all members to be Faust.
    "table_standby_replicas": 0,
    "autodiscover": False,
    "Worker": "tailrace.projections.faust.worker:ProjectionWorker",
}

MAX_CRASHES, CRASH_SECONDS = 3, 60.0
"""An agent that crashes so often within this time ends the worker."""
_APP_ARGUMENTS = ("monitor", "config_source", "loop", "beacon")
"""Arguments of `faust.App` that are not settings."""

log = logging.getLogger("tailrace.projections")


class ProjectionBoot(BootStrategy):
    """Starts Faust's web server only if the app wants it; `faust worker` would ignore the settings and start it.

    Starts Faust's own consumer only if something reads from it: without a topic it crashes.
    """

    app: ProjectionApp

    def _should_enable_web(self) -> bool:
        return self.app.wants_web

    def _should_enable_kafka_consumer(self) -> bool:
        return self.app.uses_faust_consumer


class ProjectionApp(faust.App):
    """See the module's docstring."""

    logger = logging.getLogger("faust.projections")
    BootStrategy = ProjectionBoot

    def __init__(self, id: str, *, kafka_settings: Mapping[str, Any] | None = None, **settings: Any) -> None:  # noqa: ANN401 - Faust's own
        self.projections: list[Projection] = []
        self.coordinator = OffsetCoordinator(self.projections)
        self.wants_web = bool(settings.get("web_enabled", False))
        self._may_declare = "topic_allow_declare" not in settings
        self.kafka_settings = dict(kafka_settings or {})
        """Settings of librdkafka for the reader."""
        self.reader: EventReader | None = None
        """Reads the topics of the projections, once the app has started."""
        self._failing: asyncio.Task[None] | None = None
        self.maintenance: Maintenance | None = None
        self.event_loop: asyncio.AbstractEventLoop | None = None
        """The loop that it runs in, once it has begun to start."""
        self._crashes: dict[str, deque[float]] = {}
        _require_known(id, settings)
        super().__init__(id, **{**DEFAULTS, **settings})

    @property
    def uses_faust_consumer(self) -> bool:
        """Whether agents or tables read topics through Faust's own consumer."""
        return bool(self.tables) or any(isinstance(agent.channel, TopicT) for agent in self.agents.values())

    def events(self, *topics: str, store: ProjectionStore[Any], **settings: Any) -> EventChannel:  # noqa: ANN401
        """Returns the channel of an agent that applies each event of these topics exactly once.

            @app.agent(app.events("shop.orders", store=store))
            async def orders(stream):
                async for event in stream:
                    async with event.once() as effects:
                        effects.upsert("orders", {"id": event.data["order_id"]}, {"cents": event.data["total_cents"]})

        `settings` are those of `agent_projection`.
        """
        from tailrace.projections.faust.agent_projection import agent_projection

        handover = Handover()
        return EventChannel(self, agent_projection(self, handover, *topics, store=store, **settings), handover)

    def agent(self, channel: Any = None, **options: Any) -> Callable[[AgentFunction], AgentT[Any]]:  # noqa: ANN401
        """Declares an agent, as in Faust; one with the channel of `events` is started again after failed attempts."""
        declare: Callable[[AgentFunction], AgentT[Any]] = super().agent(channel, **options)
        if not isinstance(channel, EventChannel):
            return declare
        return lambda function: declare(run_agent(function))

    # Called by projections.

    def register(self, projection: Projection) -> None:
        """Adds a projection: its topics are read, and it receives their records."""
        if any(known.name == projection.name for known in self.projections):
            raise ConfigError(
                f"two projections of {self.conf.id} have the name {projection.name}",
                why="They would share offsets and markers, and each would skip what the other has applied.",
                remedy="Give one of them another `name`.",
            )
        if any(known.store is projection.store for known in self.projections):
            # A store has the name of one projection: with two they would share offsets and markers.
            if not isinstance(projection.store, ShareableStore):
                raise ConfigError(
                    f"{projection.name} has the same store object as another projection of {self.conf.id}",
                    why="A store keeps the offsets and markers of one projection.",
                    remedy=f"Create a second {type(projection.store).__name__} for it.",
                )
            projection.store = projection.store.another()
        self.projections.append(projection)

    async def send_record(self, record: Record) -> None:
        """Publishes a record; returns when Kafka has stored it."""
        headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in record.headers]
        await self.producer.send_and_wait(
            record.topic,
            record.key,
            record.value,
            None,
            None,
            headers,  # type: ignore[arg-type]  # Kafka allows a header without a value; Faust's type does not
            transactional_id=None,
        )

    def fail(self, error: BaseException) -> None:
        """Ends the worker with this error."""
        self._failing = asyncio.get_running_loop().create_task(self.crash(error))

    # Called by Faust.

    async def _on_agent_error(self, agent: AgentT[Any], exc: BaseException) -> None:
        """Ends the worker if an agent crashes repeatedly. Faust restarts the agent, but each crash loses an event."""
        if isinstance(exc, AgentEnded):
            self.fail(exc)
            return
        log.error("agent crashed", extra={"fields": {"agent": agent.name, "error": type(exc).__name__}})
        now = time.monotonic()
        crashes = self._crashes.setdefault(agent.name, deque(maxlen=MAX_CRASHES))
        crashes.append(now)
        if len(crashes) == MAX_CRASHES and now - crashes[0] < CRASH_SECONDS:
            self.fail(
                AgentCrashed(
                    f"the agent {agent.name} crashed {MAX_CRASHES} times within {CRASH_SECONDS:.0f} s: "
                    f"{type(exc).__name__}",
                    why="It crashed before its first event, or after an event that is applied."
                    if isinstance(agent.channel, EventChannel)
                    else "Faust counts an event whose agent raised as done, so each crash loses one.",
                    remedy="Fix the agent: it must handle its errors itself. The projections continue where they were.",
                )
            )
        await super()._on_agent_error(agent, exc)

    async def on_start(self) -> None:
        self.event_loop = asyncio.get_running_loop()
        if self.tables and self._may_declare:
            self.conf.topic_allow_declare = True
        check_app(self)
        await self._wait_for_kafka()
        self.maintenance = Maintenance(self)
        await self.maintenance.start()
        await super().on_start()
        if self.projections:
            self.reader = await EventReader.started(self)

    async def on_stop(self) -> None:
        """Ends the reading first: the agents and the producer are still there."""
        if self.reader is not None:
            await self.reader.stop()
        await super().on_stop()

    async def on_shutdown(self) -> None:
        await super().on_shutdown()
        if self.maintenance is not None:
            await self.maintenance.stop()

    async def _wait_for_kafka(self) -> None:
        """Waits for a broker that is unavailable at the start; Faust would exit."""
        attempt = 0
        while not self.should_stop:
            client = AIOKafkaClient(**connection(self))
            try:
                await client.bootstrap()
            except KafkaConnectionError:
                await require_certificates(connection(self))
                no_token = await missing_token(self.conf.broker_credentials)
                attempt += 1
                seconds = backoff.delay(attempt)
                code = no_token.code if no_token else "KafkaUnavailable"
                log.warning(
                    "waiting",
                    extra={"fields": {"error": code, "retry_in": round(seconds, 1), "attempt": attempt}},
                )
                await self.sleep(seconds)
            else:
                return
            finally:
                await client.close()

    async def on_started_init_web_server(self) -> None:
        """Starts none that the user gave to Faust: `check_app` refuses it."""

    def _load_settings(self, *, silent: bool = False) -> Settings:
        """Loads Faust's settings; refuses a password in a broker's address before anything prints it."""
        settings = super()._load_settings(silent=silent)
        for url in (*settings.broker, *settings.broker_consumer, *settings.broker_producer):
            if url.user or url.password:
                raise ConfigError(
                    f"{settings.id}: the broker's address contains a user or a password",
                    why="Faust does not log in with them, and prints the address.",
                    remedy="Give them as broker_credentials=faust.SASLCredentials(username=…, password=…).",
                )
        return settings

    def stream(self, channel: Any, *args: Any, **options: Any) -> StreamT[Any]:  # noqa: ANN401 - Faust's own
        """Refuses a stream of a topic that nothing would ever read."""
        if isinstance(channel, TopicT) and self.started and not self.uses_faust_consumer:
            raise ConfigError(
                f"{self.conf.id}: a stream of {', '.join(channel.topics)} was started by a task",
                why="The app has no agent or table with a topic, so Faust's consumer does not run.",
                remedy="Read the topic in an agent: @app.agent(app.topic(…)).",
            )
        if isinstance(channel, EventChannel):
            return AgentStream(channel, app=self, **{"beacon": self.beacon, **options})
        return super().stream(channel, *args, **options)

    def _create_directories(self) -> None:
        # Faust creates a folder `<id>-data` in the current folder, but only tables on disk need one.
        if self.conf.store.scheme != "memory":
            super()._create_directories()


def _require_known(name: str, settings: dict[str, Any]) -> None:
    """Refuses unknown arguments, which Faust would ignore."""
    known = {*Settings.SETTINGS, *_APP_ARGUMENTS}
    for given in settings.keys() - known:
        close = difflib.get_close_matches(given, known, n=1)
        raise ConfigError(
            f"{name}: {given} is not a setting of a projection app",
            why="Faust would ignore it silently.",
            remedy=f"Did you mean `{close[0]}`?" if close else "Remove it, or correct its name.",
        )


def projection_app(name: str, broker: str = "kafka://localhost:9092", **settings: Any) -> ProjectionApp:  # noqa: ANN401
    """Creates an app for projections. Its consumer group is `<name>.projections`; `settings` are Faust's.

    Several brokers are given as `kafka://one:9092;kafka://two:9092`, credentials as `broker_credentials`.
    `kafka_settings` are librdkafka's, for the consumer that reads the projections' topics, such as
    `{"ssl.certificate.location": …, "ssl.key.location": …}`.
    """
    return ProjectionApp(name, broker=broker, **settings)
