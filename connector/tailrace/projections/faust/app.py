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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

import faust
from aiokafka import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from faust.app.base import BootStrategy
from faust.transport import conductor
from faust.transport.drivers import aiokafka as driver
from faust.types import Message
from faust.types.agents import AgentT
from faust.types.settings import Settings
from faust.types.transports import ConductorT, ConsumerT, TransportT

from tailrace import backoff
from tailrace.errors import AgentCrashed, ConfigError
from tailrace.event import Record
from tailrace.projections.faust.app_checks import check_app
from tailrace.projections.faust.consumer import Consumer
from tailrace.projections.faust.maintenance import Maintenance
from tailrace.projections.faust.offset_coordinator import OffsetCoordinator
from tailrace.projections.faust.topics import connection, require_certificates

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
    # Faust creates no topics: it needs none without tables, replies and leaders.
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
Receiver = Callable[[str, int, int, int, Message], bool]
"""Takes topic, partition, offset, the end of the previous record, and Faust's message. False: read it again."""

log = logging.getLogger("tailrace.projections")


class Conductor(conductor.Conductor):
    """Faust's conductor, without acknowledgements for topics of projections."""

    logger = logging.getLogger("faust.projections")

    def acks_enabled_for(self, topic: str) -> bool:
        """Asked by streams, the compiled ones too, and by the consumer before they track a record."""
        return super().acks_enabled_for(topic) and not cast(ProjectionApp, self.app).coordinator.owns(topic)


class Transport(driver.Transport):
    """Faust's Kafka transport with the consumer of projections."""

    Consumer: ClassVar[type[ConsumerT]] = Consumer
    Conductor: ClassVar[type[ConductorT]] = Conductor


class WithoutWeb(BootStrategy):
    """Never starts Faust's web server; `faust worker` would ignore the settings and start it."""

    def _should_enable_web(self) -> bool:
        return False


class ProjectionApp(faust.App):
    """See the module's docstring."""

    logger = logging.getLogger("faust.projections")
    BootStrategy = WithoutWeb

    def __init__(self, id: str, **settings: Any) -> None:  # noqa: ANN401 - Faust's own
        self.projections: list[Projection] = []
        self.coordinator = OffsetCoordinator(self.projections)
        self.wants_web = bool(settings.get("web_enabled", False))
        self._failing: asyncio.Task[None] | None = None
        self.maintenance: Maintenance | None = None
        self.event_loop: asyncio.AbstractEventLoop | None = None
        """The loop that it runs in, once it has begun to start."""
        self._crashes: dict[str, deque[float]] = {}
        _require_known(id, settings)
        super().__init__(id, **{**DEFAULTS, **settings})

    @property
    def reader(self) -> Consumer:
        """The consumer, with its own type."""
        return cast(Consumer, self.consumer)

    @property
    def has_reader(self) -> bool:
        """Whether the consumer exists. Asking for `reader` before would create it, perhaps in a wrong thread."""
        return self._consumer is not None

    @property
    def receivers(self) -> dict[str, list[Receiver]]:
        """The projections' `receive` methods by topic."""
        topics = {topic for projection in self.projections for topic in projection.topics}
        return {topic: [each.receive for each in self.projections if topic in each.topics] for topic in topics}

    # Called by projections.

    def register(self, projection: Projection) -> None:
        """Adds a projection: its topics are read, and it receives their records."""
        if any(known.name == projection.name for known in self.projections):
            raise ConfigError(
                f"two projections of {self.conf.id} have the name {projection.name}",
                why="They would share offsets and markers, and each would skip what the other has applied.",
                remedy="Give one of them another `name`.",
            )
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
        log.error("agent crashed", extra={"fields": {"agent": agent.name, "error": type(exc).__name__}})
        now = time.monotonic()
        crashes = self._crashes.setdefault(agent.name, deque(maxlen=MAX_CRASHES))
        crashes.append(now)
        if len(crashes) == MAX_CRASHES and now - crashes[0] < CRASH_SECONDS:
            self.fail(
                AgentCrashed(
                    f"the agent {agent.name} crashed {MAX_CRASHES} times within {CRASH_SECONDS:.0f} s: "
                    f"{type(exc).__name__}",
                    why="Faust counts an event whose agent raised as done, so each crash loses one.",
                    remedy="Fix the agent: it must handle its errors itself. The projections continue where they were.",
                )
            )
        await super()._on_agent_error(agent, exc)

    async def on_start(self) -> None:
        self.event_loop = asyncio.get_running_loop()
        check_app(self)
        await self._wait_for_kafka()
        self.maintenance = Maintenance(self)
        await self.maintenance.start()
        await super().on_start()
        if self.receivers:
            # Only for the subscription: no stream reads this topic object.
            self.topics.add(self.topic(*self.receivers, acks=False))

    async def on_shutdown(self) -> None:
        """Called when reading has ended."""
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
                attempt += 1
                seconds = backoff.delay(attempt)
                log.warning(
                    "waiting",
                    extra={"fields": {"error": "KafkaUnavailable", "retry_in": round(seconds, 1), "attempt": attempt}},
                )
                await self.sleep(seconds)
            else:
                return
            finally:
                await client.close()

    async def on_started_init_web_server(self) -> None:
        """Starts none, not even one that the user gave to Faust."""

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

    def _new_transport(self) -> TransportT:
        return Transport(self.conf.broker_consumer, self)

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
    """Creates an app for projections. `name` is also its consumer group; `settings` are Faust's.

    Several brokers are given as `kafka://one:9092;kafka://two:9092`, credentials as `broker_credentials`.
    """
    return ProjectionApp(name, broker=broker, **settings)
