"""The commands that create an outbox collection in MongoDB and a user with the minimal privileges to tail it.

They are data, as the server accepts them, and also written out for mongosh: so tests run the same commands that people
read.
"""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any, NamedTuple

from tailrace.outbox.layouts import DOCUMENT, ColumnMap

USERS = "admin"
"""The database of roles and users, which clients use by default."""


LINE = 80
"""Longer values are written on several lines."""


class Expression(str):
    """A JavaScript expression, which only mongosh can evaluate."""

    __slots__ = ()


PROMPT = Expression("passwordPrompt()")
"""Asks for the password, which must not be in a file."""


class ShellCommand(NamedTuple):
    """A command `body` for a `database`; `why` is a comment for people."""

    why: str
    database: str
    body: dict[str, Any]


def collection_commands(database: str, collection: str, columns: ColumnMap = DOCUMENT) -> list[ShellCommand]:
    """Returns the commands that create the outbox collection and its indexes."""
    unique = _index(columns.id)
    ordered = _index(columns.timestamp or "created_at", "_id")
    entity = _index("entity_id", "entity_version")
    return [
        ShellCommand(
            "A service inserts here in the same transaction as its business documents: both are committed, or neither. "
            "Documents may be updated and deleted at any time: only inserts are published. Leave this out if the "
            "collection is there already.",
            database,
            {"create": collection},
        ),
        ShellCommand(
            f"No event twice; the events of one entity in their order; and the order in which `start: beginning` reads "
            f"what is there (source.order_by: [{', '.join(ordered['key'])}]).",
            database,
            {"createIndexes": collection, "indexes": [{**unique, "unique": True}, entity, ordered]},
        ),
    ]


def user_commands(database: str, collection: str, role: str, user: str) -> list[ShellCommand]:
    """Returns the commands that create the role that tails the collection, with minimal privileges, and its user."""
    rights = [
        {"resource": {"db": database, "collection": collection}, "actions": ["find", "changeStream"]},
        {"resource": {"db": database, "collection": ""}, "actions": ["listCollections"]},
    ]
    return [
        ShellCommand(
            "changeStream and find to follow the collection and to read what it holds; listCollections to recognise "
            "a collection that was re-created. Nothing here may write. For several collections in one pipeline, give "
            'find and changeStream on the whole database: collection: "".',
            USERS,
            {"createRole": role, "privileges": rights, "roles": []},
        ),
        ShellCommand(
            "No password here: mongosh asks for it. Pipelines may share a user: if it exists already, run "
            f"db.getSiblingDB({_js(USERS)}).grantRolesToUser({_js(user)}, [{_js(role)}]) instead. With the role "
            "clusterMonitor besides, `tailrace check` and `tailrace status` also report the members and the oplog.",
            USERS,
            {"createUser": user, "pwd": PROMPT, "roles": [{"role": role, "db": USERS}]},
        ),
    ]


def script(commands: list[ShellCommand]) -> str:
    """Returns the script for mongosh, which stops at the first command that fails."""
    return "\n".join(
        f"{_comment(each.why)}\ndb.getSiblingDB({_js(each.database)}).runCommand({_js(each.body)});\n"
        for each in commands
    )


def _index(*fields: str) -> dict[str, Any]:
    return {"key": dict.fromkeys(fields, 1), "name": "_".join(f"{field}_1" for field in fields)}


def _comment(text: str) -> str:
    return textwrap.fill(text, 115, initial_indent="// ", subsequent_indent="// ", break_on_hyphens=False)


def _js(value: object, depth: int = 0) -> str:
    """Formats a value as JavaScript: names without quotes where possible, short values on one line."""
    if isinstance(value, Expression):
        return str(value)
    if isinstance(value, dict):
        parts = [f"{_name(str(name))}: {_js(each, depth + 1)}" for name, each in value.items()]
        return _joined("{ ", parts, " }", depth) if parts else "{}"
    if isinstance(value, list):
        return _joined("[", [_js(each, depth + 1) for each in value], "]", depth)
    return json.dumps(value)


def _joined(begin: str, parts: list[str], end: str, depth: int) -> str:
    line = f"{begin}{', '.join(parts)}{end}"
    if len(line) <= LINE and "\n" not in line:
        return line
    indent = "    " * (depth + 1)
    body = "".join(f"{indent}{part},\n" for part in parts)
    return f"{begin.strip()}\n{body}{indent[4:]}{end.strip()}"


def _name(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_$][\w$]*", text, flags=re.ASCII) else json.dumps(text)
