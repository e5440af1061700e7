"""The settings of the mirror: flags, or environment variables, which flags override."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PREFIX = "MADARA_EXTERNAL_DB_"
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class ExternalDbSettings:
    """The field `batch_size` is the flag --external-db-batch-size and the variable MADARA_EXTERNAL_DB_BATCH_SIZE."""

    enabled: bool = False
    mongodb_uri: str = ""
    database: str = ""
    """Empty: madara_<chain_id>."""
    collection: str = "mempool_transactions"
    batch_size: int = 100
    flush_interval_ms: int = 1000
    pool_size: int = 10
    connect_timeout_ms: int = 10_000
    retention_secs: int = 86_400
    retention_tick_secs: int = 300
    strict_outbox: bool = True
    retry_backoff_ms: int = 1000
    retry_backoff_max_ms: int = 60_000


HELP = {
    "enabled": "mirror accepted transactions in an external database",
    "mongodb_uri": "where the mirror is, such as mongodb://localhost:27017/?replicaSet=rs0",
    "database": "default: madara_<chain_id>",
    "collection": "the collection of the mirror",
    "batch_size": "documents per batch",
    "flush_interval_ms": "how long a transaction waits for others, at most",
    "pool_size": "connections to MongoDB",
    "connect_timeout_ms": "how long to wait for a connection to MongoDB",
    "retention_secs": "delete a transaction so long after its block was confirmed on L1",
    "retention_tick_secs": "how often to look for transactions to delete",
    "strict_outbox": "reject a transaction that cannot be captured",
    "retry_backoff_ms": "the first delay while MongoDB is away",
    "retry_backoff_max_ms": "the longest delay",
}


def add_flags(parser: argparse.ArgumentParser, environ: Mapping[str, str] = os.environ) -> None:
    for name, default in _defaults(parser, environ).items():
        flag = f"--external-db-{name.replace('_', '-')}"
        # Not the variable's value, which may be a secret.
        text = f"{HELP[name]} (default: {getattr(ExternalDbSettings(), name)}; {PREFIX}{name.upper()})"
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
        else:
            parser.add_argument(flag, type=_positive if isinstance(default, int) else str, default=default, help=text)


def settings_of(given: argparse.Namespace, chain_id: str, parser: argparse.ArgumentParser) -> ExternalDbSettings:
    values = {name: getattr(given, f"external_db_{name}") for name in HELP}
    values["database"] = values["database"] or f"madara_{chain_id}"
    settings = ExternalDbSettings(**values)
    if settings.enabled and not settings.mongodb_uri:
        parser.error("--external-db-enabled needs --external-db-mongodb-uri")
    if settings.retry_backoff_max_ms < settings.retry_backoff_ms:
        parser.error("--external-db-retry-backoff-max-ms is smaller than --external-db-retry-backoff-ms")
    return settings


def flags_of(settings: ExternalDbSettings) -> Sequence[str]:
    """Returns the flags with these settings."""
    flags = []
    for name in HELP:
        value, flag = getattr(settings, name), name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{'' if value else 'no-'}external-db-{flag}")
        elif value != "":
            flags.append(f"--external-db-{flag}={value}")
    return flags


def _defaults(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> dict[str, bool | int | str]:
    found: dict[str, bool | int | str] = {}
    for name in HELP:
        default: bool | int | str = getattr(ExternalDbSettings(), name)
        variable = f"{PREFIX}{name.upper()}"
        given = environ.get(variable)
        try:
            found[name] = default if given is None else _parsed(given, default)
        except ValueError as error:
            parser.error(f"{variable} is {given!r}: {error}")
    return found


def _parsed(text: str, default: bool | int | str) -> bool | int | str:
    if isinstance(default, bool):
        if text.lower() not in TRUE + FALSE:
            raise ValueError("write true or false")
        return text.lower() in TRUE
    return _positive(text) if isinstance(default, int) else text


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("write a whole number from 1 on")
    return int(text)
