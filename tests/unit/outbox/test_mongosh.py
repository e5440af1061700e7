"""Tests of mongosh.py: no privilege too many, and JavaScript that matches the data."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.outbox.layouts import DEBEZIUM
from tailrace.outbox.mongosh import PROMPT, ShellCommand, collection_commands, script, user_commands


def as_data(javascript: str) -> list[tuple[str, Any]]:
    """Parses it as JSON: adds quotes to names and removes trailing commas."""
    found = re.findall(
        r'^db\.getSiblingDB\((".*?")\)\.runCommand\((.*?)\);$', javascript, flags=re.MULTILINE | re.DOTALL
    )
    plain = (re.sub(r"(?<=[{,\s])([A-Za-z_$][\w$]*): ", r'"\1": ', body) for _, body in found)
    bodies = [re.sub(r",(\s*[}\]])", r"\1", body).replace("passwordPrompt()", json.dumps(PROMPT)) for body in plain]
    return [(json.loads(name), json.loads(body)) for (name, _), body in zip(found, bodies, strict=True)]


COMMANDS = [*collection_commands("shop", "outbox"), *user_commands("shop", "outbox", "tailrace_orders", "tailrace")]


def test_the_role_gets_only_the_privileges_it_needs() -> None:
    role, user = user_commands("shop", "outbox", "r", "u")
    assert role.body["privileges"] == [
        {"resource": {"db": "shop", "collection": "outbox"}, "actions": ["find", "changeStream"]},
        {"resource": {"db": "shop", "collection": ""}, "actions": ["listCollections"]},
    ]
    assert role.body["roles"] == []
    assert user.body == {"createUser": "u", "pwd": PROMPT, "roles": [{"role": "r", "db": "admin"}]}


def test_the_indexes_follow_the_map() -> None:
    _, indexes = collection_commands("shop", "outbox", DEBEZIUM)
    assert [(index["key"], index.get("unique", False)) for index in indexes.body["indexes"]] == [
        ({"id": 1}, True),
        ({"entity_id": 1, "entity_version": 1}, False),
        ({"created_at": 1, "_id": 1}, False),
    ]


def test_the_script_matches_the_data() -> None:
    assert as_data(script(COMMANDS)) == [(each.database, each.body) for each in COMMANDS]


def test_the_script_has_only_comments_and_commands() -> None:
    outside = re.sub(r"^db\..*?\);$", "", script(COMMANDS), flags=re.MULTILINE | re.DOTALL)
    assert all(line.startswith("// ") for line in outside.splitlines() if line)
    assert max(map(len, script(COMMANDS).splitlines())) <= 120


@pytest.mark.parametrize("name", ["a\nb", 'a"b', "a'b", "a\\b", "a\u2028b", "a${b}", "*/ b", "drop()"])
def test_a_name_cannot_escape_from_its_string_or_comment(name: str) -> None:
    commands = [*collection_commands("shop", name), *user_commands("shop", name, name, name)]
    written = script(commands)
    assert [body for _, body in as_data(written)] == [each.body for each in commands]
    assert all(line.startswith(("// ", "db.", " ", "}")) for line in written.splitlines() if line)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_parsed_unchanged(database: str, text: str) -> None:
    command = ShellCommand("why", database, {"create": text, "list": [text, {"key": text}], "empty": {}, "no": []})
    assert json.dumps(text) in script([command])
    assert script([command]).count("\n") <= 12
