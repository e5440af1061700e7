"""Validates the settings of a source: one database, and no settings of the other kind."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from tailrace.config.kafka_settings import wrong
from tailrace.config.secrets import Secret, connection_secret
from tailrace.config.section import Section
from tailrace.sources.mongo.filters import filter_text
from tailrace.sources.postgres.predicate import parse_predicate
from tailrace.sources.postgres.token_login import token_address

POSTGRES_ONLY = ("auth", "table", "messages", "slot", "publication", "failover", "on_change", "replay_window")
MONGO_ONLY = ("collection",)
_ADDRESS = {
    "postgres": "postgres: postgresql://tailrace:${env:DB_PASSWORD}@localhost:5432/shop",
    "mongo": "mongo: mongodb://tailrace:${env:DB_PASSWORD}@localhost:27017/?replicaSet=rs0",
}


def mongo_address(given: object) -> object:
    if not isinstance(given, str | Secret):
        return given
    secret = connection_secret(given)
    if not re.fullmatch(r"mongodb(\+srv)?://\S+", secret.reveal()):
        raise wrong("a MongoDB address: mongodb://… or mongodb+srv://…", f"write `{_ADDRESS['mongo']}`")
    return secret


def require_token_address(connection: Secret) -> None:
    """Refuses an address with a password, or without the host and user that a token is for."""
    try:
        token_address(connection.reveal())
    except ValueError as error:
        raise wrong(
            f"an address for logins with tokens: {error}",
            "write it like `postgres: postgresql://tailrace@db.example.org:5432/shop?sslmode=verify-full`",
            "source",
            "postgres",
        ) from None


def one_or_more(given: object) -> object:
    return (given,) if isinstance(given, str) else given


def collections(names: tuple[str, ...]) -> tuple[str, ...]:
    """Requires one database, because a change stream watches one collection or one database."""
    expected = "the outbox collection as database.collection, or a list of several of one database"
    if not all(re.fullmatch(r"[^\s/\\.\"$*<>:|?]{1,63}\.[^\s$\0]{1,190}", name) for name in names) or not names:
        raise wrong(expected, "write it like `collection: shop.outbox`")
    if len({name.partition(".")[0] for name in names}) > 1 or len(set(names)) < len(names):
        raise wrong(expected, "create one pipeline per database, and name each collection once")
    return names


NEEDS_TABLE = {
    "start": ("now", "messages of the past are not kept: there is no table to read them from"),
    "on_log_loss": ("halt", "what is lost from the log cannot be recovered: there is no table to compare"),
    "order_by": ((), "there are no rows to read in an order"),
    "start_where": (None, "there are no rows to select"),
}
"""Settings with the only value that they may have with `source.messages`, and why."""


class MessageSettings(Section):
    """Events that the service writes with pg_logical_emit_message(true, prefix, content)."""

    prefix: str = Field(
        pattern=r"^[^\x00-\x1f\x7f]{1,200}$",
        description="the prefix of the messages, without control characters",
        examples=["orders"],
    )
    """The prefix of the messages that are events. Others are ignored."""


def require_messages(settings: Mapping[str, object], given: set[str]) -> None:
    """Refuses settings that need a table, if events are messages."""
    if "table" in given:
        raise wrong("no table beside source.messages", "remove source.table or source.messages", "source", "table")
    for name, (allowed, why) in NEEDS_TABLE.items():
        if name in given and settings[name] != allowed:
            raise wrong(f"nothing beside source.messages, because {why}", "remove it", "source", name)


def require_embedded(given: set[str]) -> None:
    """Refuses all other settings of a source beside an embedded outbox."""
    for name in sorted(given - {"rocksdb"}):
        raise wrong("nothing beside source.rocksdb: everything in it is published", "remove it", "source", name)


def embedded_folder(path: Path, info: ValidationInfo) -> Path:
    """Resolves a folder relative to the pipeline's file. It need not exist: the service creates it."""
    base = (info.context or {}).get("folder")
    return path if base is None else base / path


def require_one_database(given: set[str], *, has_postgres: bool, has_mongo: bool, has_outbox: bool) -> None:
    """Refuses both or no databases, and settings of the other kind."""
    if has_postgres == has_mongo:
        if has_mongo:
            raise wrong("one database", "remove source.postgres or source.mongo: a pipeline reads one", "source")
        kind = "mongo" if {"mongo", *MONGO_ONLY} & given and "postgres" not in given else "postgres"
        raise wrong("an address of the database", f"add `{_ADDRESS[kind]}` under `source:`", "source", kind)
    own, foreign = (("postgres", MONGO_ONLY), ("mongo", POSTGRES_ONLY))[has_mongo]
    for name in foreign:
        if name in given:
            raise wrong(f"nothing: it is not a setting of source.{own}", "remove it", "source", name)
    needed = "table" if own == "postgres" else "collection"
    if not has_outbox:
        example = "table: public.outbox" if own == "postgres" else "collection: shop.outbox"
        raise wrong(f"the outbox {needed}", f"add `{example}` under `source:`", "source", needed)


def require_orderable(order_by: tuple[str, ...], *, has_mongo: bool) -> None:
    """Refuses nested fields: the position of a first read cannot be stored for them."""
    if has_mongo and any("." in field for field in order_by):
        raise wrong("fields of the document itself", "remove nested fields such as a.b", "source", "order_by")


def as_text(given: object) -> object:
    """Returns a filter that is written as YAML as JSON."""
    if not isinstance(given, dict):
        return given
    try:
        return json.dumps(given, sort_keys=True)
    except TypeError:
        raise wrong(
            "values that JSON has", 'write a date as `{$date: "2026-01-01T00:00:00Z"}`, and field names as texts'
        ) from None


def valid_start_where(text: str, *, is_mongo: bool, beginning: bool) -> str:
    """Returns the predicate, a filter in a standard form; refuses what cannot be the same in a resumed first read."""
    if not text:
        return ""
    place = ("source", "start_where")
    if not beginning:
        raise wrong("nothing, because source.start is `now`", "remove it, or set start: beginning", *place)
    try:
        if is_mongo:
            return filter_text(text)
        parse_predicate(text)
    except ValueError as error:
        expected = "a MongoDB filter" if is_mongo else "an SQL condition on columns of the outbox"
        example = "{status: {$ne: published}}" if is_mongo else "processed IS NOT TRUE"
        raise wrong(f"{expected}; {error}", f"write it like `start_where: {example}`", *place) from None
    return text.strip()


MongoAddress = Annotated[Secret, BeforeValidator(mongo_address)]
StartWhere = Annotated[str, BeforeValidator(as_text)]
EmbeddedFolder = Annotated[Path, AfterValidator(embedded_folder)]
Collections = Annotated[tuple[str, ...], BeforeValidator(one_or_more), AfterValidator(collections)]
