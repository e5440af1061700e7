"""What consumers will find different from Debezium's records, and options that would make records unlike them. Pure."""

from __future__ import annotations

from tailrace.config.framework_keys import JSON
from tailrace.config.translation import KeyProblem
from tailrace.debezium_import.connector_config import CONVERTERS, ConnectorConfig

TEXT_HEADERS = (
    "org.apache.kafka.connect.storage.SimpleHeaderConverter",
    "org.apache.kafka.connect.storage.StringConverter",
)


def _router_option(config: ConnectorConfig, option: str) -> tuple[str, str]:
    """Returns the full key and the value of an option of the event router; the value is empty if it is not given."""
    for key, text in config.keys.items():
        if key.startswith("transforms.") and key.endswith(f".{option}"):
            return key, text.strip()
    prefix = "collection" if config.is_mongo else "table"
    return f"transforms.outbox.{prefix}.{option}", ""


def timestamp_column(config: ConnectorConfig) -> str | None:
    """Returns the column from which the router takes the timestamp of a record."""
    return _router_option(config, "field.event.timestamp")[1] or None


def _expands(config: ConnectorConfig) -> bool:
    return _router_option(config, "expand.json.payload")[1].lower() == "true"


def find_problems(config: ConnectorConfig) -> list[KeyProblem]:
    """Returns options with which records would have another form, besides those that the translation refuses."""
    problems = [
        KeyProblem(
            key,
            "is not given: the converter of the Connect worker applies, which is not known here",
            "add --connect-worker with the properties file of the worker, or add the converter to the configuration",
        )
        for key in CONVERTERS[:2]
        if key not in config.keys and key not in config.left_out
    ]
    if config.keys.get("value.converter", "").strip() == JSON and not _expands(config):
        key, _ = _router_option(config, "expand.json.payload")
        problems.append(
            KeyProblem(
                key,
                "is not true, so the JSON converter writes a payload as a text in quotation marks",
                "change the consumers and set expand.json.payload=true first; or use --leave-out value.converter if "
                "all consumers accept a JSON object instead of a text that contains one",
            )
        )
    problems += _unsent_headers(config)
    header = config.keys.get("header.converter", "").strip()
    if header and header not in TEXT_HEADERS:
        problems.append(
            KeyProblem(
                "header.converter",
                "writes headers in another form than plain text",
                "change the consumers and remove it; or use --leave-out header.converter if they read plain text",
            )
        )
    return problems


def _unsent_headers(config: ConnectorConfig) -> list[KeyProblem]:
    """Returns placed columns that are parts of the event: they are not headers under their own names as well."""
    parts = {
        _router_option(config, "field.event.id")[1] or ("_id" if config.is_mongo else "id"): "id",
        _router_option(config, "field.event.type")[1] or "type": "type",
        _router_option(config, "route.by.field")[1] or "aggregatetype": "",
        _router_option(config, "field.event.key")[1] or "aggregateid": "",
        _router_option(config, "field.event.payload")[1] or "payload": "",
    }
    key = _router_option(config, "fields.additional.placement")[0]
    return [
        KeyProblem(
            key,
            f"places {column} in a header, which is a part of the event here",
            f"let consumers read {f'the header {parts[column]}' if parts[column] else 'key, topic or value'} instead, "
            f"and remove it from this option or use --leave-out {key}",
        )
        for column in _placed(config)
        if column in parts and parts[column] != column
    ]


def _placed(config: ConnectorConfig) -> list[str]:
    text = _router_option(config, "fields.additional.placement")[1]
    return [part.partition(":")[0].strip() for part in text.split(",") if part.strip()]


def find_differences(config: ConnectorConfig) -> list[str]:
    """Returns sentences about what becomes different; topics, keys, values and placed headers do not."""
    placed = _placed(config)
    shown = f" besides {', '.join(placed)}" if placed else ""
    found = [
        "Headers: Tailrace adds `type`, `position`, `timestamp` and `tailrace.pipeline`, and each further column of "
        f"the outbox{shown} under its own name. Debezium's `__debezium.context.*` are not sent any more.",
        f"Timestamp of a record: the commit time, instead of {_timestamp(config)}.",
        "Topics of Debezium itself get no more records: heartbeats, signals, notifications, transaction metadata.",
    ]
    if _expands(config):
        found.append(
            "Values: the JSON text as the database has it, with its spaces and order; Debezium writes it without "
            "spaces (expand.json.payload). They are equal as JSON."
        )
    elif config.is_mongo:
        found.append(
            "Values: a payload that is a document becomes plain JSON; without expand.json.payload Debezium writes it "
            'as Extended JSON (`{"$numberInt": "4"}`). A payload that is a text stays as it is.'
        )
    if config.keys.get("errors.tolerance", "").strip().lower() != "all":
        found.append(
            "An event that cannot be published is dead-lettered, and the pipeline goes on; Debezium stops "
            "(errors.tolerance=none). `on_invalid: halt` does the same here."
            if "errors.tolerance" not in config.keys
            else "An event that cannot be published stops the pipeline, as before."
        )
    return found


def _timestamp(config: ConnectorConfig) -> str:
    column = timestamp_column(config)
    return f"the column {column}" if column else "the time at which Debezium read it"
