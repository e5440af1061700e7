"""Keys that every connector of Kafka Connect may have, besides its own: tasks, converters, errors, topic creation.

Some have a counterpart among a pipeline's settings. Some change nothing for a source that is exactly-once anyway, and
are ignored with a note. The others would change what is published, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailrace.config.model import PipelineSettings
from tailrace.config.translation import Translation

STRING = "org.apache.kafka.connect.storage.StringConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
BYTES = (
    "org.apache.kafka.connect.converters.ByteArrayConverter",
    "io.debezium.converters.ByteArrayConverter",
    "io.debezium.converters.BinaryDataConverter",
)
AVRO = "io.confluent.connect.avro.AvroConverter"
JSON_SCHEMA = "io.confluent.connect.json.JsonSchemaConverter"
CONVERTERS = (STRING, JSON, *BYTES, AVRO, JSON_SCHEMA)

_RENAMED = {
    "offsets.storage.topic": "kafka.offsets_topic",
    "errors.deadletterqueue.topic.name": "kafka.dead_letter_topic",
    "topic.creation.default.partitions": "topics.partitions",
    "topic.creation.default.replication.factor": "topics.replication",
}
_IGNORED = {
    "config.action.reload": "references are resolved at each start",
    "connector.plugin.version": "a worker has one version of each class",
    "header.converter": "headers are text",
    "transaction.boundary": "a batch, and the position behind it, are one transaction",
    "transaction.boundary.interval.ms": "a batch, and the position behind it, are one transaction",
    "errors.retry.timeout": "see `retries`",
    "errors.retry.delay.max.ms": "see `retries`",
    "errors.log.enable": "errors are always logged",
    "errors.log.include.messages": "payloads are never logged",
    "errors.deadletterqueue.context.headers.enable": "dead letters always have them",
    "errors.deadletterqueue.topic.replication.factor": "see `kafka.internal_replication`",
    "tasks.max.enforce": "a pipeline has one task",
}
_SECTIONS = frozenset(PipelineSettings.model_fields)


def is_setting(key: str) -> bool:
    """Whether a key names a setting of a pipeline, known or misspelt."""
    return key.partition(".")[0] in _SECTIONS


def framework_settings(given: Mapping[str, str], found: Translation) -> dict[str, str]:
    """Returns the settings that the framework's keys stand for, and all keys that are not the framework's."""
    own = {key: text for key, text in given.items() if is_setting(key)}
    for key in sorted(given):
        text, translated = given[key].strip(), _translator(key)
        if is_setting(key):
            continue
        if translated is not None:
            translated(key, text, own, found)
        elif key in _RENAMED:
            found.put(own, _RENAMED[key], text, key)
        elif key in _IGNORED:
            found.note(key, _IGNORED[key])
        elif key.startswith("producer.override."):
            found.put(own, f"kafka.settings.{key.removeprefix('producer.override.')}", text, key)
        elif key.startswith(("admin.override.", "consumer.override.")):
            found.note(key, "all clients use `kafka.settings`")
        elif key.startswith(("topic.creation.default.", "topic.creation.")):
            found.refuse(key, "is not translated", "describe the topic in a file of `topics.folder`")
        elif not key.startswith(("key.converter.", "value.converter.")):
            own[key] = given[key]
    _converters(given, own, found)
    return own


Translator = Callable[[str, str, dict[str, str], Translation], None]


def _translator(key: str) -> Translator | None:
    return {
        "tasks.max": _tasks,
        "errors.tolerance": _tolerance,
        "exactly.once.support": _exactly_once,
        "topic.creation.enable": _creation,
        "key.converter": _nothing,
        "value.converter": _nothing,
    }.get(key)


def _nothing(_key: str, _text: str, _own: dict[str, str], _found: Translation) -> None:
    """Converters are translated together, because a registry serves both."""


def _tasks(key: str, text: str, _own: dict[str, str], found: Translation) -> None:
    if not text.isascii() or not text.isdigit() or int(text[:9]) < 1:
        found.refuse(key, f"is {text[:20]!r}: expected a whole number, at least 1", "write `1`")
    elif int(text[:9]) > 1:
        found.note(key, "a pipeline has one task, because events stay in the order of their commits")


def _tolerance(key: str, text: str, own: dict[str, str], found: Translation) -> None:
    policy = {"none": "halt", "all": "dead_letter"}.get(text.lower())
    if policy is None:
        found.refuse(key, f"is {text[:20]!r}: expected none or all", "write `none` to stop, `all` to dead-letter")
    else:
        found.put(own, "on_invalid", policy, key)


def _exactly_once(key: str, text: str, own: dict[str, str], found: Translation) -> None:
    if text.lower() not in ("required", "requested"):
        found.refuse(key, f"is {text[:20]!r}: expected required or requested", "correct or remove it")
    elif text.lower() == "required":
        found.put(own, "kafka.delivery", "exactly_once", key)
    else:
        found.note(key, "exactly-once is the default: see `kafka.delivery`")


def _creation(key: str, text: str, own: dict[str, str], found: Translation) -> None:
    found.put(own, "topics.create", text, key)


def _converters(given: Mapping[str, str], own: dict[str, str], found: Translation) -> None:
    for side in ("key", "value"):
        key = f"{side}.converter"
        converter = given.get(key, "").strip()
        options = {name.removeprefix(f"{key}."): text for name, text in given.items() if name.startswith(f"{key}.")}
        if not converter:
            for name in options:
                found.note(f"{key}.{name}", f"there is no {key}")
            continue
        if converter not in CONVERTERS:
            found.refuse(
                key,
                "is not a converter that can be translated",
                f"write one of {', '.join(CONVERTERS)}, or remove it and set `format.{side}`",
            )
            continue
        _format(side, converter, own, found)
        _converter_options(key, converter, options, own, found)


def _format(side: str, converter: str, own: dict[str, str], found: Translation) -> None:
    key = f"{side}.converter"
    if converter == AVRO:
        found.put(own, f"format.{side}", "avro", key)
    elif side == "value":
        found.put(own, "format.value", "json", key)
    else:
        # A string key is published as its bytes; only the JSON converter puts it in quotation marks.
        found.put(own, "format.key", "json" if converter in (JSON, JSON_SCHEMA) else "bytes", key)
    if converter in (AVRO, JSON_SCHEMA):
        found.put(own, "format.schema_id", "prefix", key)


def _converter_options(
    key: str, converter: str, options: Mapping[str, str], own: dict[str, str], found: Translation
) -> None:
    # Connect's default is true, and such an envelope is not what consumers of an outbox expect.
    if converter == JSON and options.get("schemas.enable", "true").strip().lower() != "false":
        found.refuse(
            f"{key}.schemas.enable",
            "is true, the default: a value would have an envelope with its schema",
            f"set {key}.schemas.enable=false",
        )
    for name, text in options.items():
        whole = f"{key}.{name}"
        if name == "schema.registry.url" and converter in (AVRO, JSON_SCHEMA):
            found.put(own, "schemas.registry.url", text, whole)
        elif name.startswith(("basic.auth.", "schema.registry.basic.auth.")) and converter in (AVRO, JSON_SCHEMA):
            setting = name.removeprefix("schema.registry.")
            if setting == "basic.auth.user.info":
                found.put(own, f"schemas.registry.settings.{setting}", text, whole)
            else:
                found.note(whole, "credentials come from `basic.auth.user.info`")
        elif name not in ("schemas.enable", "delegate.converter.type", "delegate.converter.type.schemas.enable"):
            found.note(whole, "it has no counterpart; see `format`")
