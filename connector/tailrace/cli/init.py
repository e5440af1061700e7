"""`tailrace init`: writes the files of a first pipeline, which needs only addresses and a password.

Four files: settings, a schema, a routing rule, and the SQL for the outbox table and a role with few rights; with
`--mongo` the commands for the outbox collection and its user. Existing files are overwritten only with `--force`. The
example schema is shared by the pipelines of a folder, so an existing one is kept; any other existing file is an error.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import typer

from tailrace.cli.output import say
from tailrace.errors import ConfigError

ROLE = "tailrace"
_TEMPLATE = "outbox.event.{aggregate}"

_SOURCE = """\
# A Tailrace pipeline: one outbox table to Kafka. Check it with `tailrace check {name}.yaml`.
# Any setting may be given as ${{env:NAME}}, ${{file:/path}} or ${{file:/path:key}}.

pipeline: {name}    # its identity in Kafka: do not rename it once it has run

source:
  postgres: postgresql://{role}:${{env:{variable}}}@localhost:5432/shop
  table: {table}
  start: beginning          # beginning: existing rows first; now: only rows written from now on
  # slot: {slot}   # created by Tailrace if it is missing (create: true)
  # publication: {slot}     # created by {name}.sql
  # failover: true          # Postgres 17 and newer: the slot survives a failover
  # on_change: halt         # how to handle an UPDATE or DELETE that your own publication sends

outbox:
  layout: debezium          # columns id, aggregatetype, aggregateid, type, payload
  columns:
    timestamp: created_at   # further columns whose names differ:
    # id, type, aggregate, key, payload, version
"""

_MONGO_SOURCE = """\
# A Tailrace pipeline: one outbox collection to Kafka. Check it with `tailrace check {name}.yaml`.
# Any setting may be given as ${{env:NAME}}, ${{file:/path}} or ${{file:/path:key}}.

pipeline: {name}    # its identity in Kafka: do not rename it once it has run

source:
  mongo: mongodb://{role}:${{env:{variable}}}@localhost:27017/?replicaSet=rs0
  collection: {outbox}    # or a list of several of one database
  start: beginning          # beginning: existing documents first; now: only those inserted from now on
  order_by: [created_at, _id]   # the order of existing documents; {name}.js creates the index

outbox:
  layout: document          # fields event_id, event_type, entity_type, partition_key, payload, created_at, topic
  # columns:                # fields whose names differ, for example:
  #   key: entity_id
"""

_MONGO_TEMPLATE = "'{stream}'     # the topic that each document names in its field `topic`"

_REST = """
schemas:                    # remove this section to publish without validation
  folder: schemas           # schemas/<event type>/<version>.json
  unknown: dead_letter      # how to handle a type without a schema: dead_letter or pass

topics:
  folder: topics            # one file per topic: which events go there, and how it is created
  # For events that no rule matches; without it they become dead letters:
  # template: {template}
  create: true              # create missing topics
  partitions: 3
  replication: -1           # replicas of a topic: -1 is the brokers' default; 3 in production

kafka:
  bootstrap: localhost:9092
  delivery: exactly_once    # or at_least_once, for lower latency
  internal_replication: -1  # the same for the offsets and dead-letter topics
  # settings:               # any librdkafka setting, for example:
  #   security.protocol: SASL_SSL
  #   sasl.password: ${{file:/run/secrets/kafka:password}}

on_invalid: dead_letter     # or park: later events of its key wait; or halt: stop at the first one
"""

_TOPIC = """\
# A routing rule. Two rules that can match the same event need a `priority`; `*` stands for any text.
topic: shop.{name}
match: {{pipeline: {name}, aggregate: order}}
partitions: 3
replication: -1             # -1 is the brokers' default; 3 in production
config: {{retention.ms: 604800000}}
"""

_SCHEMA_FILE = Path("schemas/OrderPlaced/1.json")
_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "OrderPlaced",
    "description": "A customer placed an order.",
    "type": "object",
    "required": ["order_id", "customer", "total_cents"],
    "properties": {
        "order_id": {"type": "string", "minLength": 1},
        "customer": {"type": "string", "minLength": 1},
        "total_cents": {"type": "integer", "minimum": 0},
    },
}


def init(
    folder: Path = typer.Argument(Path(), metavar="DIR", help="The folder to write to; created if missing."),
    name: str = typer.Option("orders", "--name", help="The pipeline's name: a-z, 0-9, _ and -."),
    table: str = typer.Option("public.outbox", "--table", help="The outbox table, in Postgres."),
    mongo: bool = typer.Option(False, "--mongo", help="Create a pipeline for MongoDB instead of Postgres."),
    collection: str = typer.Option("shop.outbox", "--collection", help="With --mongo: the outbox collection."),
    force: bool = typer.Option(False, "--force", help="Overwrite existing files."),
) -> None:
    """Create the files of a first pipeline: settings, schema, routing rule, SQL.

    With --mongo, the commands for mongosh that create the collection and its user replace the SQL.

    Examples:

        tailrace init --name orders --table public.outbox

        tailrace init --name orders --mongo --collection shop.outbox
    """
    files = mongo_files(name, collection) if mongo else starter_files(name, table)
    present = [file for file in files if (folder / file).exists() and file != _SCHEMA_FILE]
    if present and not force:
        raise ConfigError(
            f"these files exist: {', '.join(str(folder / file) for file in present)}",
            why="Nothing was written.",
            remedy="Choose another --name or folder, or overwrite with --force.",
        )
    try:
        for file, text in files.items():
            if file == _SCHEMA_FILE and (folder / file).exists() and not force:
                say(f"kept  {folder / file}")
                continue
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
            say(f"wrote {folder / file}")
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written ({error.strerror})",
            remedy="Choose a folder that you may write to.",
        ) from None
    say()
    for line in _mongo_next_steps(folder, name) if mongo else _next_steps(folder, name):
        say(line)


def starter_files(name: str, table: str) -> dict[Path, str]:
    """Returns the files of a first Postgres pipeline, by their path in its folder."""
    from tailrace.outbox.ddl import grants_ddl, table_ddl
    from tailrace.outbox.layouts import DEBEZIUM
    from tailrace.sql_names import split_table

    _require_name(name)
    split_table(table)
    slot = f"tailrace_{name.replace('-', '_')}"
    columns = dataclasses.replace(DEBEZIUM, timestamp="created_at")
    values = {"name": name, "role": ROLE, "slot": slot, "variable": _variable(name)}
    return {
        Path(f"{name}.yaml"): _SOURCE.format(**values, table=_plain(table)) + _REST.format(template=_TEMPLATE),
        **_common_files(name),
        Path(f"{name}.sql"): f"{table_ddl(table, columns)}\n{grants_ddl(table, ROLE, slot)}",
    }


def mongo_files(name: str, collection: str) -> dict[Path, str]:
    """Returns the files of a first MongoDB pipeline."""
    _require_name(name)
    commands = _commands_script(name, collection, ROLE)
    values = {"name": name, "role": ROLE, "variable": _variable(name), "outbox": _plain(collection)}
    return {
        Path(f"{name}.yaml"): _MONGO_SOURCE.format(**values) + _REST.format(template=_MONGO_TEMPLATE),
        **_common_files(name),
        Path(f"{name}.js"): commands,
    }


def _split_collection(name: str) -> tuple[str, str]:
    """Splits `shop.outbox` into database and collection."""
    from pydantic_core import PydanticCustomError

    from tailrace.config.sources import collections

    try:
        collections((name,))
    except PydanticCustomError:
        raise ConfigError(
            f"{name!r} cannot be a collection's name",
            why="Expected database.collection.",
            remedy="Write it like --collection shop.outbox.",
        ) from None
    database, _, collection = name.partition(".")
    return database, collection


def _commands_script(name: str, outbox: str, user: str) -> str:
    """Returns the mongosh commands that create the collection, the role and the user."""
    from tailrace.outbox.mongosh import collection_commands, script, user_commands

    database, collection = _split_collection(outbox)
    role = f"tailrace_{name.replace('-', '_')}"
    first = "// For mongosh, as a user who may create collections, roles and users.\n"
    commands = [*collection_commands(database, collection), *user_commands(database, collection, role, user)]
    return f"{first}\n{script(commands)}"


def _common_files(name: str) -> dict[Path, str]:
    return {
        _SCHEMA_FILE: json.dumps(_SCHEMA, indent=2) + "\n",
        Path(f"topics/{name}.yaml"): _TOPIC.format(name=name),
    }


def _require_name(name: str) -> None:
    if not re.fullmatch(r"[a-z0-9_-]{1,48}", name):
        raise ConfigError(
            f"{name!r} cannot be a pipeline's name",
            why="Expected a-z, 0-9, _ and -, at most 48.",
            remedy="Write it like --name orders.",
        )


def _plain(text: str) -> str:
    """Quotes a name for YAML if necessary."""
    return text if re.fullmatch(r"[a-z_][a-z0-9_.]*", text) else json.dumps(text)


def _variable(name: str) -> str:
    """Returns the name of the variable for the password, which cannot begin with a digit."""
    stem = re.sub(r"[^A-Z0-9]", "_", name.upper())
    return f"{'_' if stem[0].isdigit() else ''}{stem}_DB_PASSWORD"


def _next_steps(folder: Path, name: str) -> list[str]:
    file, sql = shlex.quote(str(folder / f"{name}.yaml")), shlex.quote(str(folder / f"{name}.sql"))
    return [
        "Next:",
        f"  1. Create the table, the role and the publication:  psql -f {sql}",
        f"     and give the role a password:                    psql -c '\\password {ROLE}'",
        "     The same file has lines for pg_hba.conf, which keep the role from copying the whole cluster.",
        f"  2. Write your addresses into {file}, then:  export {_variable(name)}=…",
        f"  3. tailrace check {file}  and, without failures,  tailrace run {file}",
    ]


def _mongo_next_steps(folder: Path, name: str) -> list[str]:
    file, commands = shlex.quote(str(folder / f"{name}.yaml")), shlex.quote(str(folder / f"{name}.js"))
    return [
        "Next:",
        f"  1. Create the collection, the role and the user (asks for a password):  mongosh -f {commands}",
        f"  2. Write your addresses into {file}, then:  export {_variable(name)}=…",
        f"  3. tailrace check {file}  and, without failures,  tailrace run {file}",
    ]
