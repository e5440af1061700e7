"""Parameters of operations: what is accepted, and the command line that they become."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.api.v1.operation import PIPELINE, Kind, Operation, Parameter, by_name, schema_of
from tailrace.errors import ConfigError


def of(kind: Kind, **more: Any) -> Parameter:
    return Parameter("size", kind, "The size.", "--size", **more)


@pytest.mark.parametrize(
    ("parameter", "given"),
    [
        (of("integer"), 1.5),
        (of("integer"), True),
        (of("integer"), "1"),
        (of("integer", minimum=1), 0),
        (of("integer", maximum=9), 10),
        (of("integer"), 2**63),
        (of("number"), float("nan")),
        (of("number"), "x"),
        (of("boolean"), "true"),
        (of("boolean"), 1),
        (of("string"), 5),
        (of("content"), "/etc/hostname"),
        (of("string"), None),
        (of("string"), "a\0b"),
        (of("string"), "\ud800"),
        (of("string"), "x" * 2001),
        (of("content"), "/etc/passwd"),
        (of("string", repeatable=True), ["a", 5]),
        (of("string", repeatable=True), ["a"] * 501),
    ],
)
def test_values_of_other_types_are_refused(parameter: Parameter, given: object) -> None:
    with pytest.raises(ConfigError, match="size"):
        parameter.checked(given)


@pytest.mark.parametrize(
    ("parameter", "texts", "value"),
    [
        (of("integer"), ["12"], 12),
        (of("number"), ["1.5"], 1.5),
        (of("boolean"), ["true"], True),
        (of("boolean"), ["false"], False),
        (of("string"), ["a b"], "a b"),
        (of("string", repeatable=True), ["a", "b"], ["a", "b"]),
    ],
)
def test_values_of_a_query(parameter: Parameter, texts: list[str], value: object) -> None:
    assert parameter.parsed(texts) == value


@pytest.mark.parametrize(
    ("parameter", "texts"),
    [
        (of("integer"), ["x"]),
        (of("integer"), ["1", "2"]),
        (of("boolean"), ["yes"]),
        (of("number"), ["inf"]),
        (of("number"), ["nan"]),
        (of("integer"), ["9" * 5000]),
    ],
)
def test_queries_that_are_refused(parameter: Parameter, texts: list[str]) -> None:
    with pytest.raises(ConfigError):
        parameter.parsed(texts)


def test_values_cannot_become_options() -> None:
    operation = Operation(
        "dlq redrive",
        "POST",
        "",
        "",
        (
            Parameter("ids", "string", "", repeatable=True),
            Parameter("why", "string", "", "--why"),
            Parameter("all", "boolean", "", "--all"),
            Parameter("payload", "content", "", "--payload"),
        ),
        (PIPELINE, "ids"),
        confirms=True,
    )
    values: dict[str, Any] = {"ids": ["--all", "0-1"], "why": "--yes", "all": False}
    words = operation.words(["/x.yaml"], values, {"payload": "payload.json"}, as_json=True, yes=True)
    assert words == [
        "dlq", "redrive", "--why=--yes", "--payload=payload.json", "--yes", "--json", "--", "/x.yaml", "--all", "0-1",
    ]  # fmt: skip


def test_unknown_and_missing_parameters() -> None:
    operation = Operation("status", "GET", "", "", (Parameter("to", "string", "Where to.", "--to", required=True),))
    with pytest.raises(ConfigError, match="no parameter 'x'"):
        operation.parameter("x")
    with pytest.raises(ConfigError, match="to is missing"):
        operation.require_all({})
    with pytest.raises(ConfigError, match="does not run the command 'run'"):
        by_name([operation], "run")


def test_schemas_state_type_bounds_and_default() -> None:
    assert schema_of(of("integer", minimum=1, maximum=5, default=2)) == {
        "description": "The size.", "type": "integer", "minimum": 1, "maximum": 5, "default": 2,
    }  # fmt: skip
    assert schema_of(of("string", repeatable=True))["type"] == "array"
    assert schema_of(of("content")) == {"description": "The size."}
