"""Translates Debezium's configuration of an outbox connector into settings of a pipeline.

Debezium reads tables, and its outbox event router turns rows into events; a pipeline does both. So the keys of the
connector become `source.*`, those of the router `outbox.*` and `topics.*`. The keys are listed in `debezium_keys.py`.
Settings of a pipeline under their own names are accepted beside Debezium's keys, and have precedence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from tailrace.config.debezium_keys import HARMLESS, MONGO, REFUSED, ROUTER_CLASSES
from tailrace.config.debezium_router import router_settings
from tailrace.config.framework_keys import is_setting
from tailrace.config.secrets import REFERENCE
from tailrace.config.translation import Translation

_SNAPSHOTS = {
    "initial": ("beginning", ""),
    "when_needed": ("beginning", "recover"),
    "never": ("now", ""),
    "no_data": ("now", ""),
    "schema_only": ("now", ""),
}
_PUBLICATIONS = {"filtered": "true", "all_tables": "true", "disabled": "false", "no_tables": "false"}
_RENAMED = {
    "slot.name": "source.slot",
    "slot.failover": "source.failover",
    "publication.name": "source.publication",
    "max.batch.size": "limits.batch_records",
}
_TLS = {
    "database.sslmode": "sslmode",
    "database.sslcert": "sslcert",
    "database.sslkey": "sslkey",
    "database.sslrootcert": "sslrootcert",
    "database.sslpassword": "sslpassword",
}
_ADDRESS_PARTS = ("database.hostname", "database.port", "database.user", "database.password", "database.dbname")
_plain_name = re.compile(r"[\w.$ -]+").fullmatch


def settings(connector: str, given: Mapping[str, str], found: Translation) -> dict[str, str]:
    """Returns the pipeline's settings that a configuration of one of Debezium's connectors stands for."""
    own = {key: text for key, text in given.items() if is_setting(key)}
    keys = {key: text.strip() for key, text in given.items() if not is_setting(key)}
    if connector == MONGO:
        _mongo_source(keys, own, found)
    else:
        _postgres_source(keys, own, found)
    _snapshot(keys, own, found)
    router_settings(ROUTER_CLASSES[connector], keys, own, found)
    for key in sorted(keys):
        _remaining(key, keys[key], found)
    return own


def _postgres_source(keys: dict[str, str], own: dict[str, str], found: Translation) -> None:
    if "source.postgres" not in own:
        _postgres_address(keys, own, found)
    for key in [key for key in keys if key in _TLS or key in _ADDRESS_PARTS]:
        del keys[key]
    for key, setting in _RENAMED.items():
        if key in keys:
            found.put(own, setting, keys.pop(key), key)
    decoder = keys.pop("plugin.name", None)
    if decoder is None:
        found.note("plugin.name", "it is not given: Tailrace always uses pgoutput")
    elif decoder.lower() != "pgoutput":
        found.refuse("plugin.name", "is not pgoutput, the only decoder that is used", "set plugin.name=pgoutput")
    mode = keys.pop("publication.autocreate.mode", None)
    if mode is not None and mode.lower() not in _PUBLICATIONS:
        found.refuse("publication.autocreate.mode", "is unknown", f"write one of {', '.join(_PUBLICATIONS)}")
    elif mode is not None:
        found.put(own, "source.create", _PUBLICATIONS[mode.lower()], "publication.autocreate.mode")
        if mode.lower() == "all_tables":
            found.note("publication.autocreate.mode", "a missing publication is created for the outbox table alone")
    if "source.table" not in own and "source.messages.prefix" not in own:
        _tables(keys, own, found)
    keys.pop("table.include.list", None)


def _postgres_address(keys: Mapping[str, str], own: dict[str, str], found: Translation) -> None:
    host, name = keys.get("database.hostname", ""), keys.get("database.dbname", "")
    for key, text in (("database.hostname", host), ("database.dbname", name)):
        if not text:
            found.refuse(key, "is missing", f"add {key}, or `source.postgres` with a connection string")
    if not host or not name:
        return
    user, password = keys.get("database.user", ""), keys.get("database.password", "")
    login = _escaped(user) + (f":{_escaped(password)}" if password else "") + ("@" if user or password else "")
    host = f"[{host}]" if ":" in host and not host.startswith("[") and "${" not in host else host
    port = keys.get("database.port", "") or "5432"
    options = [f"{option}={_escaped(keys[key])}" for key, option in _TLS.items() if keys.get(key)]
    query = f"?{'&'.join(options)}" if options else ""
    own["source.postgres"] = f"postgresql://{login}{host}:{port}/{_escaped(name)}{query}"
    found.origins["source.postgres"] = "database.hostname"


def _escaped(text: str) -> str:
    """Percent-encodes what is not a reference; a referenced value is escaped when it is resolved."""
    pieces, end = [], 0
    for reference in REFERENCE.finditer(text):
        pieces += [quote(text[end : reference.start()], safe=""), reference[0]]
        end = reference.end()
    return "".join([*pieces, quote(text[end:], safe="")])


def _tables(keys: Mapping[str, str], own: dict[str, str], found: Translation) -> None:
    key = "table.include.list"
    names = _names(keys.get(key, ""))
    if not keys.get(key):
        found.refuse(key, "is missing", f"set {key} to the outbox, such as public.outbox")
    elif names is None:
        found.refuse(key, "is a pattern", f"write the name of the outbox table: {key}=public.outbox")
    elif len(names) > 1:
        found.refuse(key, f"names {len(names)} tables", "create one connector for each outbox table")
    else:
        found.put(own, "source.table", names[0], key)


def _mongo_source(keys: dict[str, str], own: dict[str, str], found: Translation) -> None:
    address = keys.pop("mongodb.connection.string", "")
    user, password = keys.pop("mongodb.user", ""), keys.pop("mongodb.password", "")
    options = []
    if source := keys.pop("mongodb.authsource", ""):
        options.append(f"authSource={_escaped(source)}")
    if keys.pop("mongodb.ssl.enabled", "false").lower() == "true":
        options.append("tls=true")
    if "source.mongo" not in own and not address:
        found.refuse(
            "mongodb.connection.string", "is missing", "set it to an address such as mongodb://db:27017/?replicaSet=rs0"
        )
    elif "source.mongo" not in own:
        found.put(own, "source.mongo", _mongo_address(address, user, password, options), "mongodb.connection.string")
    key = "collection.include.list"
    given = keys.pop(key, "")
    names = _names(given)
    if "source.collection" in own:
        pass
    elif not given:
        found.refuse(key, "is missing", f"set {key} to the outbox, such as shop.outbox")
    elif names is None:
        found.refuse(key, "is a pattern", f"write names of collections: {key}=shop.outbox")
    else:
        found.put(own, "source.collection", ",".join(names), key)
    found.put(own, "outbox.layout", "debezium", "connector.class")
    if "max.batch.size" in keys:
        found.put(own, "limits.batch_records", keys.pop("max.batch.size"), "max.batch.size")


def _mongo_address(address: str, user: str, password: str, options: list[str]) -> str:
    scheme, separator, rest = address.partition("://")
    if user and separator and "@" not in rest:
        rest = f"{_escaped(user)}{f':{_escaped(password)}' if password else ''}@{rest}"
    if options:
        hosts, slash, path = rest.partition("/")
        joint = "&" if "?" in path else "?"
        rest = f"{hosts}{slash or '/'}{path}{joint}{'&'.join(options)}"
    return f"{scheme}{separator}{rest}"


def _names(given: str) -> list[str] | None:
    """Reads a list of regular expressions that are plain names; None if one of them is a pattern.

    An unescaped dot would match any character, but everyone means a dot.
    """
    names = [re.sub(r"\\(.)", r"\1", part.strip()) for part in given.split(",") if part.strip()]
    plain = all(_plain_name(re.sub(r"\\.", "", part.strip()).removeprefix("^").removesuffix("$") or "x")
                for part in given.split(",") if part.strip())  # fmt: skip
    return [name.removeprefix("^").removesuffix("$") for name in names] if names and plain else None


def _snapshot(keys: dict[str, str], own: dict[str, str], found: Translation) -> None:
    given = keys.pop("snapshot.mode", None)
    mode = "initial" if given is None else given.lower()
    if mode not in _SNAPSHOTS:
        found.refuse(
            "snapshot.mode",
            "is not translated" if mode in ("always", "initial_only") else "is unknown",
            f"write one of {', '.join(_SNAPSHOTS)}; `tailrace replay` publishes existing rows again",
        )
        return
    start, on_loss = _SNAPSHOTS[mode]
    if given is None and "source.start" not in own:
        found.note("snapshot.mode", "it is not given: as with Debezium, existing rows are published first")
    found.put(own, "source.start", start, "snapshot.mode")
    if on_loss:
        found.put(own, "source.on_log_loss", on_loss, "snapshot.mode")


def _remaining(key: str, text: str, found: Translation) -> None:
    for pattern, remedy in REFUSED.items():
        if _matches(pattern, key) and text.lower() not in ("", "false", "none"):
            found.refuse(key, "is not translated", remedy)
            return
    for pattern, why in HARMLESS.items():
        if _matches(pattern, key):
            found.note(key, why)
            return
    if not any(_matches(pattern, key) for pattern in REFUSED):
        found.refuse(
            key,
            "is neither a setting nor a known key of Debezium",
            "correct the name, or remove it if an outbox does not need it",
        )


def _matches(pattern: str, key: str) -> bool:
    return key.startswith(pattern[:-1]) if pattern.endswith("*") else key == pattern
