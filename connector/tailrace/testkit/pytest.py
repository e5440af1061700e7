"""A pytest plugin for services: the fixture `outbox` records and validates the events that a test adds.

pytest imports this module in every run where the distribution is installed, so it imports everything else only when
the fixture is used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tailrace.schemas.compiled import SchemaSet
    from tailrace.testkit.recording import RecordingOutbox

SCHEMAS = "tailrace_schemas"
LAYOUT = "tailrace_layout"

_schema_set = pytest.StashKey["SchemaSet"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SCHEMAS, "Folder of the schemas that the fixture `outbox` validates with.", default="schemas")
    parser.addini(LAYOUT, "Layout of the outbox that the fixture `outbox` stands for.", default="debezium")


@pytest.fixture
def outbox(pytestconfig: pytest.Config) -> RecordingOutbox:
    """An Outbox that validates events with the schemas of `tailrace_schemas`, and keeps them in `outbox.events`.

    An event without a schema, or that violates its schema, raises EventInvalid, as in production.
    """
    from tailrace.testkit.recording import RecordingOutbox

    return RecordingOutbox(layout=pytestconfig.getini(LAYOUT), schemas=_schemas(pytestconfig))


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explains the difference between recorded and expected events."""
    recorded_events = sys.modules.get("tailrace.testkit.recorded_events")
    return recorded_events.explain(left, right) if recorded_events is not None and op == "==" else None


def _schemas(config: pytest.Config) -> SchemaSet:
    """Reads the schemas once in a test run."""
    from tailrace.errors import SchemaError
    from tailrace.schemas.folder import load_folder

    found = config.stash.get(_schema_set, None)
    if found is None:
        base = config.inipath.parent if config.inipath else config.rootpath
        folder = base / config.getini(SCHEMAS)
        try:
            found = config.stash[_schema_set] = load_folder(folder)
        except SchemaError as error:
            pytest.fail(
                f"the fixture `outbox` cannot read its schemas: {error}\n"
                f"  setting: {SCHEMAS} = {config.getini(SCHEMAS)}, in the ini file of pytest",
                pytrace=False,
            )
    return found
