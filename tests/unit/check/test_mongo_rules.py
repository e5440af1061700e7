"""The rules for MongoDB, at their limits."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.check.mongo_rules import (
    allows,
    check_fit,
    check_members,
    check_mongo_encryption,
    check_mongo_version,
    check_user,
    check_window,
    check_write_concern,
    is_encrypted,
    is_unverified,
)
from tailrace.check.result import State

HOUR = 3600


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ((5, 0, 31), State.FAIL),
        ((6, 0, 0), State.WARN),
        ((6, 0, 8), State.WARN),
        ((6, 0, 9), State.OK),
        ((7, 0, 0), State.OK),
        ((8, 2, 1), State.OK),
    ],
)
def test_version(version: tuple[int, ...], state: State) -> None:
    check = check_mongo_version(version)
    assert check.state is state
    assert bool(check.remedy) == (state is not State.OK)


@pytest.mark.parametrize(
    ("uri", "encrypted"),
    [
        ("mongodb://h/", False),
        ("mongodb://h/?tls=true", True),
        ("mongodb://h/?replicaSet=r&SSL=TRUE", True),
        ("mongodb://h/?tls=false", False),
        ("mongodb+srv://h/", True),
        ("mongodb+srv://h/?ssl=false", False),
        ("mongodb://tls=true@h/", False),
    ],
)
def test_encryption_in_the_uri(uri: str, encrypted: bool) -> None:
    assert is_encrypted(uri) == encrypted


@pytest.mark.parametrize("option", ["tlsInsecure", "tlsAllowInvalidCertificates", "tlsallowinvalidhostnames"])
def test_unverified_certificates(option: str) -> None:
    assert is_unverified(f"mongodb://h/?tls=true&{option}=true")
    assert not is_unverified(f"mongodb://h/?tls=true&{option}=false")
    found = check_mongo_encryption(["10.0.0.1"], encrypted=True, unverified=True)
    assert (found.state, "tlsCAFile" in found.remedy) == (State.WARN, True)


def test_encryption() -> None:
    assert check_mongo_encryption(["10.0.0.1"], encrypted=True).state is State.OK
    assert check_mongo_encryption(["127.0.0.1", "localhost"], encrypted=False).state is State.OK
    found = check_mongo_encryption(["127.0.0.1", "10.0.0.1"], encrypted=False)
    assert found.state is State.WARN
    assert "10.0.0.1" in found.found
    assert "tls=true" in found.remedy


def test_user() -> None:
    users, role = [{"user": "tailrace", "db": "admin"}], {"role": "tailrace_orders", "db": "admin"}
    assert check_user(users, [role], ["10.0.0.1"]).found == "tailrace, with tailrace_orders"
    assert check_user(users, [role, {"role": "root", "db": "admin"}], []).state is State.WARN
    assert check_user([], [], ["127.0.0.1"]).state is State.OK
    assert check_user([], [], ["127.0.0.1", "10.0.0.1"]).state is State.WARN


@pytest.mark.parametrize(
    ("resource", "allowed"),
    [
        ({"db": "shop", "collection": "outbox"}, True),
        ({"db": "shop", "collection": ""}, True),
        ({"db": "", "collection": ""}, True),
        ({"anyResource": True}, True),
        ({"db": "shop", "collection": "other"}, False),
        ({"db": "other", "collection": ""}, False),
        ({"cluster": True}, False),
    ],
)
def test_privileges(resource: dict[str, Any], allowed: bool) -> None:
    privileges = [{"resource": resource, "actions": ["createCollection"]}]
    assert allows(privileges, "createCollection", "shop", "outbox") == allowed
    assert not allows(privileges, "find", "shop", "outbox")


def test_documents_that_fit_the_column_map() -> None:
    assert "no document to check" in check_fit(0, [], "id=_id").found
    assert check_fit(3, [], "id=_id").state is State.OK
    check = check_fit(5, ["no a", "no b", "no b"], "id=_id")
    assert check.state is State.WARN
    assert "no b (2 of 5), no a (1 of 5)" in check.found


def member(number: int, state: int = 2, health: int = 1) -> dict[str, Any]:
    return {"_id": number, "state": state, "health": health}


@pytest.mark.parametrize(
    ("members", "state", "expected"),
    [
        ([member(0, 1), member(1), member(2), member(3)], State.OK, "3 of 3"),
        ([member(0, 1), member(1), member(2, 8, 0), member(3)], State.WARN, "2 of 3"),
        ([member(0, 1), member(1), member(2, 3), member(3)], State.WARN, "2 of 3"),
        ([member(0), member(1, 8, 0), member(2, 8, 0), member(3)], State.FAIL, "1 of 3"),
    ],
)
def test_members(members: list[dict[str, Any]], state: State, expected: str) -> None:
    """Neither the fourth member, which has no vote, nor the arbiter, which has no data, counts."""
    config: dict[str, Any] = {
        "members": [
            *({"_id": number, "votes": 1} for number in range(3)),
            {"_id": 3, "votes": 0},
            {"_id": 4, "votes": 1, "arbiterOnly": True},
        ]
    }
    check = check_members({"members": [*members, member(4, 7)], "writeMajorityCount": 2}, config)
    assert check.state is state
    assert expected in check.found


@pytest.mark.parametrize(
    ("default", "state"),
    [
        (None, State.OK),
        ({}, State.OK),
        ({"w": "majority", "wtimeout": 0}, State.OK),
        ({"w": 2}, State.OK),
        ({"w": 1}, State.WARN),
        ({"w": 0}, State.WARN),
    ],
)
def test_write_concern(default: dict[str, Any] | None, state: State) -> None:
    check = check_write_concern(default)
    assert check.state is state
    assert ("setDefaultRWConcern" in check.remedy) == (state is State.WARN)


def test_window() -> None:
    assert check_window(23 * HOUR, full=True).state is State.WARN
    assert check_window(24 * HOUR, full=True).state is State.OK
    assert check_window(1, full=False).state is State.OK
