"""The files of a first pipeline, as `tailrace init` writes them, and the set-up of its outbox."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from tailrace.errors import ConfigError
from tailrace.outbox.ddl import outbox_ddl
from tailrace.outbox.marks.columns import require_mark_columns
from tailrace.outbox.mongosh import collection_commands, script, user_commands
from tailrace.outbox.specs import LAYOUTS, layout_map
from tailrace.sql_names import split_table

ROLE = "tailrace"
TABLES = {"debezium": "public.outbox", "document": "public.outbox", "streams": "public.outbox_events",
          "storage": "public.storage_outbox"}  # fmt: skip
COLLECTION = "shop.outbox"
MARKS = ("none", "watermark", "rows")
MARKS_HELP = "Delivery marks that the role may write: none, watermark or rows."

_HEAD = """\
# A Tailrace pipeline: one outbox {what} to Kafka. Check it with `tailrace check {name}.yaml`.
# Any setting may be given as ${{env:NAME}}, ${{file:/path}} or ${{file:/path:key}}.

pipeline: {name}    # its identity in Kafka: do not rename it once it has run

source:
"""

_POSTGRES = """\
  postgres: postgresql://{role}:${{env:{variable}}}@localhost:5432/shop
  table: {outbox}
  start: beginning          # beginning: existing rows first; now: only rows written from now on
  # slot: {slot}   # created by Tailrace if it is missing (create: true)
  # publication: {slot}     # created by {name}.sql
  # failover: true          # Postgres 17 and newer: the slot survives a failover
  # on_change: halt         # how to handle an UPDATE or DELETE that your own publication sends
"""

_MONGO = """\
  mongo: mongodb://{role}:${{env:{variable}}}@localhost:27017/?replicaSet=rs0
  collection: {outbox}    # or a list of several of one database
  start: beginning          # beginning: existing documents first; now: only those inserted from now on
  order_by: [created_at, _id]   # the order of existing documents; {name}.js creates the index
"""

_OUTBOX = {
    "debezium": """
outbox:
  layout: debezium          # columns id, aggregatetype, aggregateid, type, payload
  columns:
    timestamp: created_at   # further columns whose names differ:
    # id, type, aggregate, key, payload, version
""",
    "document": """
outbox:
  layout: document          # fields event_id, event_type, entity_type, partition_key, payload, created_at, topic
  # columns:                # fields whose names differ, for example:
  #   key: entity_id
""",
    "streams": """
outbox:
  layout: streams           # columns id, stream, topic (type and subject), payload, created_at
  # columns:                # the key is the stream: its events stay in order. To order by a field of the payload:
  #   key: payload#/team_id
""",
    "storage": """
outbox:
  layout: storage           # outbox_id, aggregate_*, event_*, sequence_number, target_topic, partition_key
  # columns:                # columns whose names differ, for example:
  #   key: aggregate_id
""",
}
_TEMPLATES = {
    "debezium": "outbox.event.{aggregate}",
    "document": "'{stream}'     # the topic that each document names in its field `topic`",
    "streams": "'{stream}'     # the topic that each row names in its column `stream`",
    "storage": "'{stream}'     # the topic that each row names in its column `target_topic`",
}

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

_MARKS = {
    "watermark": "\nmarks: watermark            # a view says which rows are published\n",
    "rows": "\nmarks: rows                 # the status of each row is kept up to date\n",
}

_TOPIC = """\
# A routing rule. Two rules that can match the same event need a `priority`; `*` stands for any text.
topic: shop.{name}
match: {{pipeline: {name}, {condition}}}
partitions: 3
replication: -1             # -1 is the brokers' default; 3 in production
config: {{retention.ms: 604800000}}
"""

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


class ChosenOutbox(NamedTuple):
    """The outbox of a new pipeline: its layout, and its table or collection."""

    layout: str
    is_mongo: bool
    place: str

    @property
    def schema_file(self) -> Path:
        """The file of the example schema, shared by the pipelines of a folder with the same layout."""
        type_name = "order.placed" if self.layout == "streams" else "OrderPlaced"
        return Path("schemas") / type_name / "1.json"


def chosen_outbox(layout: str | None, *, mongo: bool, table: str | None, collection: str | None) -> ChosenOutbox:
    """Returns the outbox that the options of a command mean; raises for options that contradict each other."""
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"there is no layout {layout!r}", remedy=f"Choose one of {', '.join(LAYOUTS)}.")
    is_mongo = mongo or collection is not None or (layout == "document" and table is None)
    layout = layout or ("document" if is_mongo else "debezium")
    if is_mongo and table is not None:
        raise ConfigError(
            "--table is for Postgres, the other options are for MongoDB",
            remedy="Give --table for Postgres, or --collection for MongoDB.",
        )
    if is_mongo and "mongo" not in LAYOUTS[layout].databases:
        raise ConfigError(
            f"the layout {layout} is a table in Postgres, not a collection in MongoDB",
            remedy="Leave --mongo and --collection out, or choose --layout document.",
        )
    return ChosenOutbox(layout, is_mongo, (collection or COLLECTION) if is_mongo else table or TABLES[layout])


def starter_files(name: str, outbox: ChosenOutbox, *, marks: str = "none") -> dict[Path, str]:
    """Returns the files of a first pipeline, by their path in its folder."""
    values = {
        "name": name,
        "role": ROLE,
        "slot": slot_name(name),
        "variable": variable(name),
        "outbox": _plain(outbox.place),
        "what": "collection" if outbox.is_mongo else "table",
    }
    setup = setup_script(name, outbox, ROLE, marks=marks)
    source = _HEAD + (_MONGO if outbox.is_mongo else _POSTGRES)
    condition = "subject: order.*" if outbox.layout == "streams" else "aggregate: order"
    rest = _OUTBOX[outbox.layout] + _REST.format(template=_TEMPLATES[outbox.layout])
    if marks != "none":
        rest += _MARKS[marks]
    return {
        Path(f"{name}.yaml"): source.format(**values) + rest,
        outbox.schema_file: json.dumps(_SCHEMA, indent=2) + "\n",
        Path(f"topics/{name}.yaml"): _TOPIC.format(name=name, condition=condition),
        Path(f"{name}.{'js' if outbox.is_mongo else 'sql'}"): setup,
    }


def setup_script(name: str, outbox: ChosenOutbox, role: str, *, by_day: bool = False, marks: str = "none") -> str:
    """Returns the SQL, or the commands for mongosh, that create the outbox and a role (a user) that tails it."""
    require_name(name)
    if marks not in MARKS:
        raise ConfigError(f"there are no delivery marks {marks!r}", remedy=f"Choose one of {', '.join(MARKS)}.")
    if not outbox.is_mongo:
        split_table(outbox.place)
        return outbox_ddl(outbox.layout, outbox.place, role, slot_name(name), by_day=by_day, marks=marks)
    if marks == "watermark":
        raise ConfigError("--marks watermark is for Postgres", remedy="Choose --marks rows, or leave it out.")
    if marks == "rows":
        require_mark_columns(outbox.layout)
    if by_day:
        raise ConfigError("--by-day is for Postgres: MongoDB has no partitions", remedy="Leave it out.")
    database, collection = _split_collection(outbox.place)
    columns = layout_map(outbox.layout, "mongo")
    commands = [
        *collection_commands(database, collection, columns),
        *user_commands(database, collection, slot_name(name), role, marks=marks),
    ]
    return f"// For mongosh, as a user who may create collections, roles and users.\n\n{script(commands)}"


def slot_name(name: str) -> str:
    """Returns the name of a pipeline's slot and publication; in MongoDB, of its role."""
    return f"tailrace_{name.replace('-', '_')}"


def variable(name: str) -> str:
    """Returns the name of the variable for the password, which cannot begin with a digit."""
    stem = re.sub(r"[^A-Z0-9]", "_", name.upper())
    return f"{'_' if stem[0].isdigit() else ''}{stem}_DB_PASSWORD"


def require_name(name: str) -> None:
    if not re.fullmatch(r"[a-z0-9_-]{1,48}", name):
        raise ConfigError(
            f"{name!r} cannot be a pipeline's name",
            why="Expected a-z, 0-9, _ and -, at most 48.",
            remedy="Write it like --name orders.",
        )


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


def _plain(text: str) -> str:
    """Quotes a name for YAML if necessary."""
    return text if re.fullmatch(r"[a-z_][a-z0-9_.]*", text) else json.dumps(text)
