"""Tests of mongosh.py: no privilege too many, and JavaScript that matches the data."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.outbox.layouts import DEBEZIUM, DOCUMENT, ColumnMap
from tailrace.outbox.mongosh import PROMPT, ShellCommand, collection_commands, script, user_commands
from tailrace.outbox.specs import layout_map


def as_data(javascript: str) -> list[tuple[str, Any]]:
    """Parses it as JSON: adds quotes to names and removes trailing commas."""
    found = re.findall(
        r'^db\.getSiblingDB\((".*?")\)\.runCommand\((.*?)\);$', javascript, flags=re.MULTILINE | re.DOTALL
    )
    plain = (re.sub(r"(?<=[{,\s])([A-Za-z_$][\w$]*): ", r'"\1": ', body) for _, body in found)
    bodies = [re.sub(r",(\s*[}\]])", r"\1", body).replace("passwordPrompt()", json.dumps(PROMPT)) for body in plain]
    return [(json.loads(name), json.loads(body)) for (name, _), body in zip(found, bodies, strict=True)]


COMMANDS = [
    *collection_commands("shop", "outbox"),
    *user_commands("shop", "outbox", "tailrace_orders", "tailrace", marks="rows"),
]


def test_the_role_gets_only_the_privileges_it_needs() -> None:
    role, user = user_commands("shop", "outbox", "r", "u")
    assert role.body["privileges"] == [
        {"resource": {"db": "shop", "collection": "outbox"}, "actions": ["find", "changeStream"]},
        {"resource": {"db": "shop", "collection": ""}, "actions": ["listCollections"]},
    ]
    assert role.body["roles"] == []
    assert user.body == {"createUser": "u", "pwd": PROMPT, "roles": [{"role": "r", "db": "admin"}]}


def test_marks_need_the_outbox_and_two_collections_beside_it() -> None:
    role, marks, _ = user_commands("shop", "outbox", "r", "u", marks="rows")
    assert "Nothing here may write" not in role.why
    assert marks.body["grantPrivilegesToRole"] == "r"
    found = {each["resource"]["collection"]: each["actions"] for each in marks.body["privileges"]}
    assert found["outbox"] == ["update"]
    assert found.keys() == {"outbox", "tailrace_marks", "tailrace_undelivered"}


def indexes(columns: ColumnMap) -> list[tuple[dict[str, int], bool]]:
    (command,) = collection_commands("shop", "outbox", columns)
    return [(index["key"], index.get("unique", False)) for index in command.body["indexes"]]


def test_the_document_layout_has_the_indexes_of_a_polling_publisher_and_one_for_the_first_read() -> None:
    assert indexes(DOCUMENT) == [
        ({"event_id": 1}, True),
        ({"entity_id": 1, "entity_version": 1}, False),
        ({"status": 1, "created_at": 1}, False),
        ({"status": 1, "published_at": 1}, False),
        ({"locked_until": 1}, False),
        ({"created_at": 1, "_id": 1}, False),
    ]


def test_other_indexes_follow_the_map() -> None:
    assert indexes(DEBEZIUM) == [({"id": 1}, True), ({"created_at": 1, "_id": 1}, False)]
    assert indexes(layout_map("debezium", "mongo")) == [({"created_at": 1, "_id": 1}, False)]


def test_what_cannot_be_created_twice_is_created_unless_it_exists() -> None:
    (created,) = collection_commands("shop", "outbox")
    role, user = user_commands("shop", "outbox", "r", "u")
    assert created.unless is None
    assert role.unless == ({"rolesInfo": {"role": "r", "db": "admin"}}, "roles")
    assert user.unless == ({"usersInfo": {"user": "u", "db": "admin"}}, "users")
    assert script([role]).count("if (db.getSiblingDB(") == 1


def test_the_script_matches_the_data() -> None:
    assert as_data(script(COMMANDS)) == [(each.database, each.body) for each in COMMANDS]


def test_the_script_has_only_comments_and_commands() -> None:
    outside = re.sub(r"^(if \(db\.[^\n]*\n)?db\..*?\);$", "", script(COMMANDS), flags=re.MULTILINE | re.DOTALL)
    assert all(line.startswith("// ") for line in outside.splitlines() if line)
    assert max(map(len, script(COMMANDS).splitlines())) <= 120


@pytest.mark.parametrize("name", ["a\nb", 'a"b', "a'b", "a\\b", "a\u2028b", "a${b}", "*/ b", "drop()"])
def test_a_name_cannot_escape_from_its_string_or_comment(name: str) -> None:
    commands = [*collection_commands("shop", name), *user_commands("shop", name, name, name)]
    written = script(commands)
    assert [body for _, body in as_data(written)] == [each.body for each in commands]
    assert all(line.startswith(("// ", "db.", "if (", " ", "}")) for line in written.splitlines() if line)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_parsed_unchanged(database: str, text: str) -> None:
    command = ShellCommand("why", database, {"create": text, "list": [text, {"key": text}], "empty": {}, "no": []})
    assert json.dumps(text) in script([command])
    assert script([command]).count("\n") <= 12
