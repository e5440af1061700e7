"""The Kafka checks of `tailrace check`: brokers, encryption and topics. Nothing is created or fenced."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.check.kafka_commands import alter_topic, tool
from tailrace.check.result import CheckResult, fail, failed, gather, hosts_of, is_loopback, ok, warn
from tailrace.check.rules import NOT_VERIFIED, check_copies, check_partitions
from tailrace.dlq.parking import ParkingLimits, require_kept
from tailrace.errors import ConfigError, ParkingUnfit, TailraceError
from tailrace.kafka.client import KafkaOptions, require_usable, security_protocol
from tailrace.kafka.tail import Cluster, ClusterObserver, topic_matcher
from tailrace.kafka.topic_plan import Change, TopicState, differences
from tailrace.kafka.topics import make_change, topic_config
from tailrace.positions.base import Position
from tailrace.routing.specs import TopicSpec
from tailrace.state import offsets
from tailrace.state.offsets import Admin
from tailrace.state.stored_state import require_position_known
from tailrace.worker.options import DEAD_LETTER_BYTES, own_topics

RECORD_OVERHEAD = 512
"""About how many bytes key, headers and framing add to a payload."""


class KafkaChecks:
    """Checks one cluster. After `checks`, `reachable` is True if a broker answered."""

    def __init__(
        self,
        options: KafkaOptions,
        specs: list[TopicSpec],
        default: TopicSpec,
        *,
        create: bool,
        payload_bytes: int,
        park: ParkingLimits | None = None,
    ) -> None:
        """`default` describes topics of the template; its topic is the template, or empty without one.

        `park` is None if no key can be parked.
        """
        self._park = park
        self._options = options
        self._specs = {spec.topic: spec for spec in specs}
        self._default = default
        self._create = create
        self._payload_bytes = payload_bytes
        self._cluster = Cluster(0, {})
        self.reachable = False

    def checks(self) -> list[CheckResult]:
        options = self._options
        try:
            require_usable(options)
            self._observer = ClusterObserver(options)
            self._cluster = self._observer.look()
        except TailraceError as error:
            remedy = "" if error.exit_code == 2 else f"Start Kafka, or correct kafka.bootstrap ({options.bootstrap})."
            return [failed("kafka", error, remedy), *self._transport()]
        self.reachable = True
        brokers = self._cluster.brokers
        found = f"{brokers} broker{'s' if brokers != 1 else ''} at {options.bootstrap}"
        checks = [
            ("offsets topic", self._offsets_topic),
            ("dead-letter topic", self._dead_letter_topic),
            ("internal topics", self._internal_topics),
            *((f"topic {topic}", lambda spec=spec: self._topic(spec)) for topic, spec in self._specs.items()),
            ("topics by template", self._template),
        ]
        return [ok("kafka", found), *self._transport(), *gather(checks)]

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    @property
    def admin(self) -> Admin:
        """The client of `checks`; only if `reachable`."""
        return self._observer.admin

    def stored(self) -> Position | None:
        """Returns the stored position, read without fencing: a running pipeline may change it at any moment."""
        if self._options.offsets_topic not in self._cluster.topics:
            return None
        return offsets.read(self._options)

    def require_position_known(self) -> None:
        """Raises if Kafka shows that the pipeline has run before although no position is stored."""
        require_position_known(self._options, self._observer.admin)

    def _transport(self) -> list[CheckResult]:
        protocol = security_protocol(self._options)
        remote = [host for host in hosts_of(self._options.bootstrap) if not is_loopback(host)]
        if protocol.endswith("plaintext") and remote:
            found = f"security.protocol is {protocol}: events{' and the password' if 'sasl' in protocol else ''} cross "
            remedy = "Set security.protocol: SSL or SASL_SSL under kafka.settings."
            return [warn("kafka encryption", f"{found}the network to {remote[0]} readable", remedy)]
        settings = {name: str(value).lower() for name, value in self._options.settings.items()}
        unverified = settings.get("enable.ssl.certificate.verification") == "false"
        unnamed = settings.get("ssl.endpoint.identification.algorithm") == "none"
        if protocol.endswith("ssl") and remote and (unverified or unnamed):
            found = NOT_VERIFIED if unverified else "the host names in certificates are not verified"
            remedy = "Remove enable.ssl.certificate.verification and ssl.endpoint.identification.algorithm."
            return [warn("kafka encryption", f"{protocol}, but {found}", remedy)]
        return [ok("kafka encryption", protocol if remote else f"{protocol}, on this machine only")]

    def _offsets_topic(self) -> CheckResult:
        options, name = self._options, "offsets topic"
        topic = options.offsets_topic
        partitions = self._cluster.topics.get(topic)
        if partitions is None:
            return self._to_create(name, offsets.spec(options), create=True, setting="kafka.internal_replication")
        policy = topic_config(self._observer.admin, topic).get("cleanup.policy", "")
        if policy != "compact":
            return fail(
                name,
                f"{topic} has cleanup.policy={policy}: Kafka would delete stored positions",
                alter_topic(options, topic, {"cleanup.policy": "compact"}),
            )
        if partitions != 1:
            return fail(
                name, f"{topic} has {partitions} partitions, not 1", "Name another topic in kafka.offsets_topic."
            )
        return self._copies(name, topic) or ok(name, f"{topic}, compacted")

    def _dead_letter_topic(self) -> CheckResult:
        options, name = self._options, "dead-letter topic"
        topic = options.dead_letter_topic
        if topic not in self._cluster.topics:
            spec = TopicSpec(topic, 1, options.internal_replication)
            declared = self._specs.get(topic)
            if declared is not None and (short := self._too_short(name, declared.config)) is not None:
                return short
            return self._to_create(name, spec, create=self._create, setting="kafka.internal_replication")
        config = topic_config(self._observer.admin, topic)
        if "compact" in config.get("cleanup.policy", ""):
            found = f"{topic} is compacted: it rejects dead letters without a key, and later ones replace earlier ones"
            return fail(name, found, alter_topic(options, topic, {"cleanup.policy": "delete"}))
        if (short := self._too_short(name, config)) is not None:
            return short
        if (few := self._copies(name, topic)) is not None:
            return few
        if int(config.get("max.message.bytes", 0)) < DEAD_LETTER_BYTES:
            return warn(
                name,
                f"{topic} accepts {config.get('max.message.bytes')} bytes, dead letters may have {DEAD_LETTER_BYTES}",
                alter_topic(options, topic, {"max.message.bytes": str(2 * DEAD_LETTER_BYTES)}),
            )
        return ok(name, topic)

    def _too_short(self, name: str, config: Mapping[str, str]) -> CheckResult | None:
        """Reports a retention that deletes dead letters while keys are parked behind them, as a start would."""
        try:
            if self._park is not None:
                require_kept(self._options, config, self._park)
        except ParkingUnfit as error:
            return failed(name, error)
        return None

    def _topic(self, spec: TopicSpec) -> CheckResult:
        name, topic = f"topic {spec.topic}", spec.topic
        partitions = self._cluster.topics.get(topic)
        if partitions is None:
            return self._to_create(name, spec, create=self._create, setting=f"replication in the spec of {topic}")
        if (few := self._copies(name, topic)) is not None:
            return few
        if (different := check_partitions(spec, partitions)) is not None:
            return different
        config = topic_config(self._observer.admin, topic)
        live = TopicState(partitions, spec.replication, config)
        if (refused := self._refused(name, differences(spec, live))) is not None:
            return refused
        largest = int(config.get("max.message.bytes", 0))
        if largest < self._payload_bytes + RECORD_OVERHEAD:
            return warn(
                name,
                f"rejects records over {largest} bytes, but limits.payload_bytes allows {self._payload_bytes}",
                alter_topic(self._options, topic, {"max.message.bytes": str(self._payload_bytes + 64 * 1024)}),
            )
        return ok(name, f"exists, {partitions} partition{'s' if partitions != 1 else ''}")

    def _template(self) -> CheckResult | None:
        name, default = "topics by template", self._default
        if not default.topic:
            return None
        made = topic_matcher(set(), default.topic, set(own_topics(self._options)))
        if (few := self._copies(name, *filter(made, sorted(self._cluster.topics)))) is not None:
            return few
        if not self._create:
            remedy = "Create every topic that events may go to, or set topics.create: true."
            return warn(name, f"{default.topic}: topics.create is false, so a new aggregate stops the pipeline", remedy)
        return self._to_create(name, default, create=True, setting="topics.replication")

    def _internal_topics(self) -> CheckResult | None:
        """The other internal topics: position history, resolutions, parked keys."""
        named = {self._options.offsets_topic, self._options.dead_letter_topic}
        return self._copies("internal topics", *sorted(own_topics(self._options) - named))

    def _copies(self, name: str, *topics: str) -> CheckResult | None:
        """Reports the first existing topic that would not survive the loss of a disk."""
        cluster = self._cluster
        there = (topic for topic in topics if topic in cluster.topics)
        found = (
            check_copies(name, topic, cluster.copies[topic], cluster.leaderless[topic], cluster.brokers)
            for topic in there
        )
        return next((each for each in found if each is not None), None)

    def _to_create(self, name: str, spec: TopicSpec, *, create: bool, setting: str) -> CheckResult:
        """Checks a topic that does not exist yet."""
        brokers = self._cluster.brokers
        if spec.replication > brokers:
            found = f"{spec.topic} needs {spec.replication} replicas, but there {_are(brokers)}"
            return fail(name, found, f"Lower {setting} to {brokers}, or add brokers.")
        shape = f"partitions: {_count(spec.partitions)}, replicas: {_count(spec.replication)}"
        if not create:
            words = ["--create", "--topic", spec.topic]
            words += ["--partitions", str(spec.partitions)] if spec.partitions > 0 else []
            words += ["--replication-factor", str(spec.replication)] if spec.replication > 0 else []
            found = f"{spec.topic} is missing, and topics.create is false"
            return fail(name, found, tool(self._options, "kafka-topics", *words))
        # A template is not a topic name, and its topics have no settings.
        changes = [] if spec is self._default else differences(spec, None)
        if (refused := self._refused(name, changes)) is not None:
            return refused
        if spec.replication == 1 and brokers > 1:
            found = (
                f"{spec.topic} will have one replica, although there are {brokers} brokers: it is lost with its disk"
            )
            return warn(name, found, f"Set {setting} to {min(brokers, 3)} before the first start.")
        return ok(name, f"{spec.topic}: will be created when needed ({shape})")

    def _refused(self, name: str, changes: list[Change]) -> CheckResult | None:
        """Asks the broker whether it accepts the declared settings, as `tailrace topics plan` does."""
        for change in changes:
            try:
                make_change(self._observer.admin, change, validate_only=True)
            except ConfigError as error:
                return failed(name, error)
            except TailraceError:
                return None  # a user without the right to change topics can still publish to existing ones
        return None


def _are(brokers: int) -> str:
    return "is 1 broker" if brokers == 1 else f"are {brokers} brokers"


def _count(number: int) -> str:
    return "the brokers' default" if number < 0 else str(number)
