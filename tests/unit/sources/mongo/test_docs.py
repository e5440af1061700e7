"""Tests of docs/mongodb.md: its settings load, and its tables match the code."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace import errors
from tailrace.config.load import load_pipeline
from tailrace.outbox.specs import LAYOUTS, layout_map
from tailrace.worker.options import REQUIRED, column_map, mongo_options

PAGE = (Path(__file__).parents[4] / "docs" / "mongodb.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Returns the cells of the section's tables, without their headers."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return [each for each in cells if not set("".join(each)) <= {"-"}][1:]


def test_the_settings_load(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(PAGE.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    settings = load_pipeline(file, {"DB_PASSWORD": "s3cret"})
    options = mongo_options(settings, column_map(settings))
    assert (options.database, options.collections) == ("shop", ("outbox",))
    assert options.order_by == ("_id",)
    assert settings.topics.template == "{stream}"


def test_the_layouts_match_the_table() -> None:
    document, debezium = (dict(layout_map(name, "mongo").parts()) for name in ("document", "debezium"))
    documented = {
        part: (one.strip("`"), other.strip("`"), how) for part, one, other, how in rows("Which field is what")
    }
    assert documented.keys() == document.keys()
    for part, (one, other, how) in documented.items():
        assert one == document[part]
        assert other == debezium.get(part, "")
        assert how.startswith("required" if part in REQUIRED else "optional")


def test_all_fields_of_a_polling_publisher_are_listed() -> None:
    listed = PAGE.split("a polling publisher uses")[1].split(":", 1)[1].split(". So")[0]
    named = set(re.findall(r"`([a-z_]+)`", listed))
    assert named == LAYOUTS["document"].ignored


def test_every_error_code_in_the_table_stops_the_pipeline() -> None:
    codes = [code.strip("`") for code, *_ in rows("What stops the pipeline")]
    assert len(codes) > 8
    for code in codes:
        assert getattr(errors, code).action is errors.Action.HALT
    assert errors.SourceUnavailable.action is errors.Action.RETRY
