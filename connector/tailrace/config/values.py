"""Validators of single settings: connections, tables, addresses, topics, folders.

Each returns the value, or raises what is expected and a remedy. None of them connects to a server.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo

from tailrace.config.kafka_settings import Setting, hidden_settings, setting_name, setting_value, wrong
from tailrace.config.secrets import MASK, Secret, connection_secret, remember, setting_secret
from tailrace.errors import ConfigError
from tailrace.outbox.layouts import INSIDE
from tailrace.routing.template import topic_flaw
from tailrace.sources.postgres.replay_window import ReplayWindow
from tailrace.sql_names import quote, split_table


def connection(given: object) -> object:
    if not isinstance(given, str | Secret):
        return given
    secret = connection_secret(given)
    value = secret.reveal()
    if not re.match(r"postgres(ql)?://\S+$|\s*\w+\s*=", value):
        raise wrong(
            "a Postgres connection: postgresql://user@host:5432/database, or host=… dbname=…",
            "write `postgres: postgresql://tailrace:${env:DB_PASSWORD}@localhost:5432/shop`",
        )
    return secret


def table(name: str) -> str:
    """Uses the common parser for table names, and adds the schema `public` if none is given."""
    try:
        schema, bare = split_table(name)
        quote(schema)
        quote(bare)
    except ConfigError:
        raise wrong("the outbox table as schema.table", "write it like `table: public.outbox`") from None
    return name if name != bare else f"{schema}.{name}"


def column(name: str) -> str:
    if INSIDE in name:
        raise wrong(
            f"the name of a column, without a path inside it ({INSIDE})",
            "name a column; only outbox.columns.key and outbox.columns.version may have a path, such as "
            f"payload{INSIDE}team_id",
        )
    return name


def path_column(name: str) -> str:
    column, inside, path = name.partition(INSIDE)
    if not column or (inside and not all(path.split("/"))):
        raise wrong(
            f"a column name, or a column, {INSIDE} and names separated by /",
            f"write it like payload{INSIDE}team_id",
        )
    return name


def bootstrap(servers: str) -> str:
    for server in servers.split(","):
        found = re.fullmatch(r"\s*(?:\w+://)?(?:[\w.-]+|\[[0-9a-fA-F:.%\w]+\])(?::(\d{1,5}))?\s*", server)
        if not found or not 0 < int(found[1] or 9092) < 65536:
            raise wrong("host:port, several separated by commas", "write it like `bootstrap: localhost:9092`")
    return servers


def topic(name: str) -> str:
    if flaw := topic_flaw(name):
        raise wrong(f"a topic name, but {flaw}", "rename the topic: letters, digits, `.`, `_` and `-`")
    return name


def template(text: str) -> str:
    unknown = sorted(set(re.findall(r"\{([^}]*)\}", text)) - {"aggregate", "type", "stream"})
    bare = re.sub(r"\{(aggregate|type|stream)\}", "x", text)
    if unknown or not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", bare):
        raise wrong(
            "a topic name that may contain {aggregate}, {type} and {stream}",
            "write it like `template: outbox.event.{aggregate}`",
        )
    return text


def registry_url(text: str) -> str:
    found = re.fullmatch(r"https?://[^\s/?#@]+(?:/[^\s?#@]*)?", text)
    if not found:
        raise wrong(
            "the registry's address: http:// or https://, a host, no user and no password",
            "write it like `url: https://registry.example.org`, credentials under `settings`",
        )
    return text.rstrip("/")


def webhook_url(given: object) -> object:
    """Treats everything after the host as a secret: services put tokens into the path."""
    if not isinstance(given, str | Secret):
        return given
    text, value = (given, given) if isinstance(given, str) else (given.text, given.reveal())
    found = re.fullmatch(r"(https?://[^\s/?#@]+)([/?][^\s#]*)?", value)
    if not found:
        raise wrong(
            "an http:// or https:// address without user and password",
            "write it like `url: https://hooks.example.org/tailrace`, credentials under `headers`",
        )
    remember(value if found[2] else "")
    return Secret(text if isinstance(given, Secret) else found[1] + (f"/{MASK}" if found[2] else ""), value)


def revealed_text(given: object) -> object:
    """Reveals a setting that cannot hold credentials once it is valid."""
    return given.reveal() if isinstance(given, Secret) else given


def hidden_headers(headers: dict[str, Setting]) -> dict[str, Setting]:
    """Treats the value of every header as a secret."""
    return {name: setting_secret("secret", _as_text(value)) for name, value in headers.items()}


def _as_text(value: Setting) -> str | Secret:
    return value if isinstance(value, Secret) else str(value)


def subject(text: str) -> str:
    unknown = sorted(set(re.findall(r"\{([^}]*)\}", text)) - {"topic", "type"})
    if unknown or "{" in re.sub(r"\{(topic|type)\}", "", text) or not text:
        raise wrong("a subject that may contain {type} and {topic}", 'write it like `subject: "{topic}-{type}"`')
    return text


def folder(path: Path, info: ValidationInfo) -> Path:
    """Resolves a folder relative to the pipeline's file."""
    return existing_folder(path, (info.context or {}).get("folder"))


def existing_folder(path: Path, base: Path | None, *place: str) -> Path:
    if base is None:
        return path
    if not (base / path).is_dir():
        raise wrong(
            "a folder that exists, relative to the pipeline's file",
            "create the folder, or correct its name",
            *place,
        )
    return base / path


def not_bool(given: object) -> object:
    """Refuses booleans, which Python treats as numbers: `partitions: yes` is a mistake."""
    if isinstance(given, bool):
        raise wrong("a number", "write a number instead of true or false")
    return given


def replication(number: int) -> int:
    if number == 0 or number < -1:
        raise wrong("a number of replicas, or -1 for the broker's default", "write 3 (1 where there is one broker)")
    return number


def replay_window(text: str) -> str:
    try:
        ReplayWindow.parse(text)
    except ValueError:
        raise wrong(
            "an age, a size, or both", "write it like `replay_window: 24 h` or `replay_window: 24 h, 2 GiB`"
        ) from None
    return text


Window = Annotated[str, AfterValidator(replay_window)]
Whole = Annotated[int, BeforeValidator(not_bool)]
Seconds = Annotated[float, BeforeValidator(not_bool)]
Connection = Annotated[Secret, BeforeValidator(connection)]
Table = Annotated[str, AfterValidator(table)]
Bootstrap = Annotated[str, AfterValidator(bootstrap)]
Template = Annotated[str, AfterValidator(template)]
Column = Annotated[str, Field(min_length=1, max_length=63), AfterValidator(column)]
PathColumn = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(path_column)]
Topic = Annotated[str, AfterValidator(topic)]
Replication = Annotated[Whole, AfterValidator(replication)]
RegistryUrl = Annotated[str, AfterValidator(registry_url)]
WebhookUrl = Annotated[Secret, BeforeValidator(webhook_url)]
Subject = Annotated[str, AfterValidator(subject)]
RegistryClientSettings = Annotated[
    dict[str, Annotated[Setting, PlainValidator(setting_value)]], AfterValidator(hidden_settings)
]
WebhookHeaders = Annotated[dict[str, Annotated[Setting, PlainValidator(setting_value)]], AfterValidator(hidden_headers)]
Folder = Annotated[Path, AfterValidator(folder)]
KafkaClientSettings = Annotated[
    dict[Annotated[str, AfterValidator(setting_name)], Annotated[Setting, PlainValidator(setting_value)]],
    AfterValidator(hidden_settings),
]
