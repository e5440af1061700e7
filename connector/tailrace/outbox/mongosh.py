"""The commands that create an outbox collection in MongoDB and a user with the minimal privileges to tail it.

They are data, as the server accepts them, and also written out for mongosh: so tests run the same commands that people
read.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from tailrace.outbox.layouts import DOCUMENT, ColumnMap

USERS = "admin"
"""The database of roles and users, which clients use by default."""


STATE = "tailrace_marks"
UNDELIVERED = "tailrace_undelivered"
"""The collections of row marks, beside the outbox."""
LINE = 80
"""Longer values are written on several lines."""


class Expression(str):
    """A JavaScript expression, which only mongosh can evaluate."""

    __slots__ = ()


PROMPT = Expression("passwordPrompt()")
"""Asks for the password, which must not be in a file."""


class ShellCommand(NamedTuple):
    """A command `body` for a `database`; `why` is a comment for people.

    `unless` is a question for the server, with the field of its answer: unless that list is empty, the command is
    skipped, so that a script may run again.
    """

    why: str
    database: str
    body: dict[str, Any]
    unless: tuple[dict[str, Any], str] | None = None


def collection_commands(database: str, collection: str, columns: ColumnMap = DOCUMENT) -> list[ShellCommand]:
    """Returns the commands that create the outbox collection and its indexes."""
    unique = {**_index(columns.id), "unique": True}
    ordered = _index(columns.timestamp or "created_at", "_id")
    indexes = [] if columns.id == "_id" else [unique]
    why = "A service inserts here in the same transaction as its business documents: both are committed, or neither. "
    why += "Documents may be updated and deleted at any time: only inserts are published. The collection is created if "
    why += "it is missing. Indexes: the order in which `start: beginning` reads what is there (source.order_by: "
    why += f"[{', '.join(ordered['key'])}])"
    if columns == DOCUMENT:
        # Those of a polling publisher, so that its questions stay fast: pending by age, published to delete, locks.
        indexes += [_index("entity_id", "entity_version"), _index("status", "created_at")]
        indexes += [_index("status", "published_at"), _index("locked_until")]
        why += "; no event twice; the events of one entity in their order; documents by status, and by lock"
    return [ShellCommand(f"{why}.", database, {"createIndexes": collection, "indexes": [*indexes, ordered]})]


def user_commands(database: str, collection: str, role: str, user: str, *, marks: str = "none") -> list[ShellCommand]:
    """Returns the commands that create the role that tails the collection, with minimal privileges, and its user.

    `marks`: the delivery marks that the role may write, `none` or `rows`.
    """
    rights = [
        {"resource": {"db": database, "collection": collection}, "actions": ["find", "changeStream"]},
        {"resource": {"db": database, "collection": ""}, "actions": ["listCollections"]},
    ]
    nothing_more = "Nothing here may write. " if marks == "none" else ""
    return [
        ShellCommand(
            "changeStream and find to follow the collection and to read what it holds; listCollections to recognise "
            f"a collection that was re-created. {nothing_more}For several collections in one pipeline, give "
            'find and changeStream on the whole database: collection: "".',
            USERS,
            {"createRole": role, "privileges": rights, "roles": []},
            unless=({"rolesInfo": {"role": role, "db": USERS}}, "roles"),
        ),
        *([] if marks == "none" else [marks_command(database, collection, role)]),
        ShellCommand(
            "No password here: mongosh asks for it. Pipelines may share a user: for one that exists already, run "
            f"db.getSiblingDB({_js(USERS)}).grantRolesToUser({_js(user)}, [{_js(role)}]) as well. With the role "
            "clusterMonitor besides, `tailrace check` and `tailrace status` also report the members and the oplog.",
            USERS,
            {"createUser": user, "pwd": PROMPT, "roles": [{"role": role, "db": USERS}]},
            unless=({"usersInfo": {"user": user, "db": USERS}}, "users"),
        ),
    ]


def marks_command(database: str, collection: str, role: str) -> ShellCommand:
    """Returns the command that lets an existing role write row marks."""
    rights = [
        {"resource": {"db": database, "collection": name}, "actions": actions}
        for name, actions in mark_privileges([collection]).items()
    ]
    return ShellCommand(
        "Delivery marks (`marks: rows`): the status fields of the outbox, and two small collections beside it.",
        USERS,
        {"grantPrivilegesToRole": role, "privileges": rights},
    )


def mark_privileges(collections: Iterable[str]) -> dict[str, list[str]]:
    """Returns the actions that row marks of these outbox collections need, by collection."""
    write = ["find", "insert", "update", "remove"]
    return {**{name: ["update"] for name in collections}, STATE: write, UNDELIVERED: write}


def script(commands: list[ShellCommand]) -> str:
    """Returns the script for mongosh, which stops at the first command that fails."""
    return "\n".join(
        f"{_comment(each.why)}\n{_condition(each)}{_call(each.database, each.body)};\n" for each in commands
    )


def _condition(command: ShellCommand) -> str:
    if command.unless is None:
        return ""
    question, field = command.unless
    return f"if ({_call(command.database, question)}.{field}.length === 0)\n"


def _call(database: str, body: dict[str, Any]) -> str:
    return f"db.getSiblingDB({_js(database)}).runCommand({_js(body)})"


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
