"""Which errors of MongoDB are transient, and how others are reported."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    DuplicateKeyError,
    ExecutionTimeout,
    InvalidOperation,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteError,
    WTimeoutError,
)

from tailrace.errors import ConfigError, StoreUnavailable
from tailrace.projections.mongo.client import is_transient, rejected, translate

LATE = {"writeErrors": [], "writeConcernErrors": [{"code": 64}]}
REFUSED = {"writeErrors": [{"code": 11000}], "writeConcernErrors": [{"code": 64}]}


def labelled(label: str) -> PyMongoError:
    return OperationFailure("aborted", 251, {"errorLabels": [label]})


@pytest.mark.parametrize(
    "error",
    [
        AutoReconnect("gone"),
        NetworkTimeout("slow"),
        NotPrimaryError("elsewhere"),
        ServerSelectionTimeoutError("nobody"),
        labelled("TransientTransactionError"),
        labelled("UnknownTransactionCommitResult"),
        OperationFailure("conflict", 112),
        OperationFailure("shutting down", 91),
        WTimeoutError("late", 64),
        ExecutionTimeout("late", 50),
        BulkWriteError(LATE),
        StoreUnavailable("away"),
    ],
)
def test_transient_errors(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        DuplicateKeyError("twice", 11000),
        WriteError("invalid", 121),
        BulkWriteError(REFUSED),
        OperationFailure("no such transaction", 251),
        OperationFailure("no right", 13),
        InvalidOperation("closed"),
        ConfigurationError("option"),
        ConfigError("setting"),
        OverflowError("larger than 8 bytes"),
    ],
)
def test_permanent_errors(error: Exception) -> None:
    assert not is_transient(error)


@pytest.mark.parametrize(
    ("write_error", "said"),
    [
        ({"code": 11000, "errmsg": 'E11000 … dup key: { email: "secret" }', "keyPattern": {"email": 1}}, "(email)"),
        ({"code": 121, "errmsg": "Document failed validation", "errInfo": {"a": "secret"}}, "failed validation"),
        ({"code": 28, "errmsg": "Cannot create field 'b' in element {a: \"secret\"}"}, "Cannot create field 'b'"),
    ],
)
def test_a_rejection_shows_no_values(write_error: dict[str, Any], said: str) -> None:
    text = str(rejected("users", write_error))
    assert said in text
    assert "users" in text
    assert "secret" not in text


def test_the_full_answer_of_the_server_is_not_shown() -> None:
    error = OperationFailure("Index already exists with different options: { v: 1 }", 85, {"x": "secret"})
    translated = translate(error, "creating the indexes of users")
    assert isinstance(translated, ConfigError)
    assert translated.why == "Index already exists with different options:"
