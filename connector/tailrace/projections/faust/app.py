"""A Faust app that projections live in: `projection_app(name)` instead of `faust.App(name)`.

It is a Faust app in every other way: agents, timers and tasks of its own run beside the projections, and both
`tailrace project module:app` and `faust -A module worker` start it. What projections rely on is set here, and looked at
again when the app starts (`app_checks.py`): environment variables win over what an app's code says.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import faust
from aiokafka import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from faust.app.base import BootStrategy
from faust.types.agents import AgentT
from faust.types.settings import Settings
from faust.types.transports import TransportT

from tailrace import backoff
from tailrace.errors import AgentCrashed, ConfigError
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.app_checks import check_app
from tailrace.projections.faust.maintenance import Maintenance
from tailrace.projections.faust.offset_coordinator import OffsetCoordinator
from tailrace.projections.faust.start_offsets import Guide, Unguided
from tailrace.projections.faust.topics import connection, require_certificates
from tailrace.projections.faust.transport import Consumer, Taker, Transport

if TYPE_CHECKING:
    from tailrace.projections.projection import Projection

DEFAULTS: dict[str, Any] = {
    "processing_guarantee": "at_least_once",
    # A worker that died is missed after 10 s, not after a minute.
    "broker_session_timeout": 10.0,
    "broker_heartbeat_interval": 3.0,
    "broker_request_timeout": 30.0,
    # Topics and partitions that are made later are found within half a minute, not five.
    "consumer_metadata_max_age_ms": 30_000,
    "key_serializer": "raw",
    "value_serializer": "raw",
    "stream_wait_empty": False,
    "web_enabled": False,
    # Faust makes no topic: what is read exists or is waited for, and there are no tables, replies or leaders.
    "topic_allow_declare": False,
    "topic_disable_leader": True,
    "store": "memory://",
    # With none, any Kafka client can be a member of the group: Faust's own way to assign needs all of them to be Faust.
    "table_standby_replicas": 0,
    "autodiscover": False,
    "Worker": "tailrace.projections.faust.worker:ProjectionWorker",
}

MOST_CRASHES, CRASH_SECONDS = 3, 60.0
"""An agent that crashes so often in this time ends the worker."""
_APP_ARGUMENTS = ("monitor", "config_source", "loop", "beacon")
"""What `faust.App` takes beside settings."""

log = logging.getLogger("tailrace.projections")


class WithoutWeb(BootStrategy):
    """Never starts Faust's web server, which `faust worker` otherwise does whatever the settings say."""

    def _should_enable_web(self) -> bool:
        return False


class ProjectionApp(faust.App):
    """See the module's docstring. `coordinator` is the projections' voice in the consumer."""

    logger = logging.getLogger("faust.projections")
    BootStrategy = WithoutWeb

    def __init__(self, id: str, **settings: Any) -> None:  # noqa: ANN401 - Faust's own
        self.projections: list[Projection] = []
        self.coordinator: Guide = Unguided()
        self.wants_web = bool(settings.get("web_enabled", False))
        self._failing: asyncio.Task[None] | None = None
        self._maintenance: Maintenance | None = None
        self._crashes: dict[str, deque[float]] = {}
        _require_known(id, settings)
        super().__init__(id, **{**DEFAULTS, **settings})

    @property
    def reader(self) -> Consumer:
        """The consumer, by what it can do for projections."""
        return cast(Consumer, self.consumer)

    @property
    def takers(self) -> dict[str, list[Taker]]:
        """Who is given the records of which topic."""
        topics = {topic for projection in self.projections for topic in projection.topics}
        return {topic: [each.receive for each in self.projections if topic in each.topics] for topic in topics}

    # What projections call.

    def register(self, projection: Projection) -> None:
        """Takes a projection in: its topics are read, each record is given to its `receive`."""
        if any(known.name == projection.name for known in self.projections):
            raise ConfigError(
                f"two projections of {self.conf.id} have the name {projection.name}",
                why="They would share their offsets and markers, and each would leave out what the other has done.",
                remedy="Give one of them another `name`.",
            )
        self.projections.append(projection)
        if isinstance(self.coordinator, Unguided):
            self.coordinator = OffsetCoordinator(self.projections)

    def pause(self, partition: Partition, holder: object) -> None:
        """Reads no more of a partition until all who asked for it have called `resume`."""
        self.reader.hold(partition, holder)

    def resume(self, partition: Partition, holder: object) -> None:
        self.reader.release(partition, holder)

    def fail(self, error: BaseException) -> None:
        """Ends the worker with this error."""
        self._failing = asyncio.get_running_loop().create_task(self.crash(error))

    # What Faust calls.

    async def _on_agent_error(self, agent: AgentT[Any], exc: BaseException) -> None:
        """Faust restarts the agent. One that crashes again and again ends the worker: each crash loses an event."""
        log.error("agent crashed", extra={"fields": {"agent": agent.name, "error": type(exc).__name__}})
        now = time.monotonic()
        crashes = self._crashes.setdefault(agent.name, deque(maxlen=MOST_CRASHES))
        crashes.append(now)
        if len(crashes) == MOST_CRASHES and now - crashes[0] < CRASH_SECONDS:
            self.fail(
                AgentCrashed(
                    f"the agent {agent.name} crashed {MOST_CRASHES} times within {CRASH_SECONDS:.0f} s: "
                    f"{type(exc).__name__}",
                    why="Faust counts an event whose agent raised as done, so each crash leaves one out.",
                    remedy="Correct the agent: let it handle its errors itself. The projections go on where they were.",
                )
            )
        await super()._on_agent_error(agent, exc)

    async def on_start(self) -> None:
        check_app(self)
        await self._wait_for_kafka()
        self._maintenance = Maintenance(self)
        await self._maintenance.start()
        await super().on_start()
        if self.takers:
            # Only to be subscribed to: no stream is behind it.
            self.topics.add(self.topic(*self.takers, acks=False))

    async def on_shutdown(self) -> None:
        """Called when nothing is read any more."""
        await super().on_shutdown()
        if self._maintenance is not None:
            await self._maintenance.stop()

    async def _wait_for_kafka(self) -> None:
        """A broker that is away at the start may come back, as it may later; Faust would end."""
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
        """None, not even one that was given to Faust in place of its own."""

    def _load_settings(self, *, silent: bool = False) -> Settings:
        """Faust's settings; refused before anything prints them if a broker's address holds a password."""
        settings = super()._load_settings(silent=silent)
        for url in (*settings.broker, *settings.broker_consumer, *settings.broker_producer):
            if url.user or url.password:
                raise ConfigError(
                    f"{settings.id}: the broker's address holds a user or a password",
                    why="Faust does not log in with them, and prints the address.",
                    remedy="Give them as broker_credentials=faust.SASLCredentials(username=…, password=…).",
                )
        return settings

    def _new_transport(self) -> TransportT:
        return Transport(self.conf.broker_consumer, self)

    def _create_directories(self) -> None:
        # Faust leaves a folder `<id>-data` wherever it is started, but only tables kept on disk need one.
        if self.conf.store.scheme != "memory":
            super()._create_directories()


def _require_known(name: str, settings: dict[str, Any]) -> None:
    """Faust takes any argument and ignores what it does not know."""
    known = {*Settings.SETTINGS, *_APP_ARGUMENTS}
    for given in settings.keys() - known:
        close = difflib.get_close_matches(given, known, n=1)
        raise ConfigError(
            f"{name}: {given} is not a setting of a projection app",
            why="Faust would ignore it silently.",
            remedy=f"Did you mean `{close[0]}`?" if close else "Remove it, or correct its name.",
        )


def projection_app(name: str, broker: str = "kafka://localhost:9092", **settings: Any) -> ProjectionApp:  # noqa: ANN401
    """An app for projections. `name` is also its consumer group; `settings` are Faust's own.

    Several brokers are given as `kafka://one:9092;kafka://two:9092`, credentials as `broker_credentials`.
    """
    return ProjectionApp(name, broker=broker, **settings)
