"""Fixes for events without schema: the files that they name."""

from __future__ import annotations

import pytest

from tailrace.check.doctor.coverage import Coverage, CoverageContext, check_coverage
from tailrace.check.result import Fix


def fixes(kind: str, version: str) -> list[Fix]:
    context = CoverageContext("orders.yaml", "schemas", None, False, None, True, lambda topic: topic)
    [found] = check_coverage(Coverage(1, without_schema={(kind, version): 1}), context, "all rows")
    return list(found.fixes)


@pytest.mark.parametrize(("version", "name"), [("", "1"), ("2", "2"), ("1.4.0", "1.4.0")])
def test_a_new_schema_is_a_file_of_its_version(version: str, name: str) -> None:
    [fix] = fixes("OrderPlaced", version)
    assert fix.kind == "shell"
    assert f"schemas/OrderPlaced/{name}.json" in str(fix)


@pytest.mark.parametrize("version", ["../../../etc/cron", "/etc/passwd", "v1", "0", "1 2"])
def test_a_version_of_an_event_never_becomes_a_path(version: str) -> None:
    [fix] = fixes("OrderPlaced", version)
    assert fix.kind == "text"
    assert ".json" not in fix.text
