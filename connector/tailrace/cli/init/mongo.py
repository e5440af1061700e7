"""The settings and commands that `tailrace init --mongo` writes."""

from __future__ import annotations

import shlex
from pathlib import Path

from tailrace.errors import ConfigError

SOURCE = """\
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

TEMPLATE = "'{stream}'     # the topic that each document names in its field `topic`"


def split_collection(name: str) -> tuple[str, str]:
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


def commands_script(name: str, outbox: str, user: str) -> str:
    """Returns the mongosh commands that create the collection, the role and the user."""
    from tailrace.outbox.mongosh import collection_commands, script, user_commands

    database, collection = split_collection(outbox)
    role = f"tailrace_{name.replace('-', '_')}"
    first = "// For mongosh, as a user who may create collections, roles and users.\n"
    commands = [*collection_commands(database, collection), *user_commands(database, collection, role, user)]
    return f"{first}\n{script(commands)}"


def next_steps(folder: Path, name: str, variable: str) -> list[str]:
    file, commands = shlex.quote(str(folder / f"{name}.yaml")), shlex.quote(str(folder / f"{name}.js"))
    return [
        "Next:",
        f"  1. Create the collection, the role and the user (asks for a password):  mongosh -f {commands}",
        f"  2. Write your addresses into {file}, then:  export {variable}=…",
        f"  3. tailrace check {file}  and, without failures,  tailrace run {file}",
    ]
