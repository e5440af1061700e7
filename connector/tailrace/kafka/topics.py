"""Real topics: looked up, created from their declared spec, or refused. Never deleted, never changed here."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tailrace.errors import TopicMissing
from tailrace.kafka.client import error_of, translate
from tailrace.routing.specs import TopicSpec

ADMIN_TIMEOUT = 15.0
GLANCE_TIMEOUT = 3.0


class TopicKeeper:
    """Answers once per topic whether it may be written to; creates it if that is allowed."""

    def __init__(self, admin: AdminClient, specs: dict[str, TopicSpec], default: TopicSpec, *, create: bool) -> None:
        """`default` lends its partitions, replication and config to topics without a spec of their own."""
        self._admin = admin
        self._specs = specs
        self._default = default
        self._create = create
        self._known: set[str] = set()

    def require(self, topics: list[str]) -> None:
        """Makes sure that all of them exist."""
        missing = [topic for topic in topics if topic not in self._known]
        if not missing:
            return
        existing = existing_topics(self._admin)
        for topic in missing:
            if topic not in existing:
                self._make(topic)
            self._known.add(topic)

    def vanished(self, topics: list[str]) -> list[str]:
        """Which of these existed before and no longer do."""
        # Asked after a failure, perhaps because Kafka is away: that is not worth a long wait.
        existing = existing_topics(self._admin, timeout=GLANCE_TIMEOUT)
        return [topic for topic in topics if topic in self._known and topic not in existing]

    def _make(self, topic: str) -> None:
        if not self._create:
            raise TopicMissing(
                f"there is no topic {topic}",
                why="topics.create is false, so Tailrace does not create it.",
                remedy=f"Create it: kafka-topics --create --topic {topic}; nothing was skipped.",
            )
        spec = self._specs.get(topic)
        if spec is None:
            spec = TopicSpec(topic, self._default.partitions, self._default.replication, self._default.config)
        create_topic(self._admin, spec)


def existing_topics(admin: AdminClient, *, timeout: float = ADMIN_TIMEOUT) -> set[str]:
    try:
        found = admin.list_topics(timeout=timeout).topics
    except KafkaException as error:
        raise translate(error_of(error), "asking Kafka for its topics") from None
    return {name for name, topic in found.items() if topic.error is None}


def create_topic(admin: AdminClient, spec: TopicSpec) -> None:
    """Creates it; that another did so meanwhile is as good."""
    new = NewTopic(spec.topic, spec.partitions, spec.replication, config=dict(spec.config))
    try:
        admin.create_topics([new], operation_timeout=ADMIN_TIMEOUT, request_timeout=ADMIN_TIMEOUT)[spec.topic].result()
    except KafkaException as error:
        if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise translate(error_of(error), f"creating the topic {spec.topic}", spec.topic) from None


def topic_config(admin: AdminClient, topic: str) -> dict[str, str]:
    """The topic's settings, defaults included."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        entries = admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT)[resource].result()
    except KafkaException as error:
        raise translate(error_of(error), f"reading the settings of {topic}", topic) from None
    return {name: entry.value for name, entry in entries.items()}
