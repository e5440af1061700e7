"""Settings of retention: durations, and conditions that an outbox cannot meet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.config.retention import age_seconds
from tailrace.errors import ConfigError


def settings(folder: Path, retention: dict[str, Any], **sections: Any) -> PipelineSettings:
    file = folder / "orders.yaml"
    given = {
        "pipeline": "orders",
        "source": {"postgres": "postgresql://localhost/shop", "table": "public.outbox"},
        "outbox": {"columns": {"timestamp": "created_at"}},
        "kafka": {"bootstrap": "localhost:9092"},
        "retention": retention,
        **sections,
    }
    file.write_text(json.dumps(given))
    return load_pipeline(file, {})


def test_durations(tmp_path: Path) -> None:
    assert [age_seconds(text) for text in ("90", "5 min", "12h", "30d", "2w", "3y")] == [
        90, 300, 43_200, 2_592_000, 1_209_600, 94_608_000,
    ]  # fmt: skip
    assert [age_seconds(text) for text in ("", "soon", "-1d", "1.5d", "101y")] == [None] * 5
    given = settings(tmp_path, {"after": "30d", "confirmations": {"topic": "t", "delay": "1h"}, "tick": 60}).retention
    assert given is not None
    assert given.confirmations is not None
    assert (given.after, given.confirmations.delay, given.tick) == (2_592_000, 3600, 60)


@pytest.mark.parametrize(
    ("retention", "part"),
    [
        ({}, "at least one condition"),
        ({"tick": 60}, "at least one condition"),
        ({"after": "soon"}, "duration"),
        ({"after": True}, "a number"),
        ({"after": "101y"}, "100y"),
        ({"confirmations": {}}, "topic"),
        ({"after": "1d", "batch_rows": 0}, "whole number"),
        ({"after": "1d", "partitions": "truncate"}, "delete or drop"),
        ({"after": "1d", "policy": "all"}, "policy"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, retention: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s).") as caught:
        settings(tmp_path, retention)
    assert part in str(caught.value) + caught.value.what + caught.value.remedy


def test_what_an_outbox_cannot_have(tmp_path: Path) -> None:
    mongo = {"source": {"mongo": "mongodb://localhost", "collection": "shop.outbox"}, "outbox": {"layout": "document"}}
    assert settings(tmp_path, {"after": "1d"}, **mongo).retention is not None
    with pytest.raises(ConfigError, match="MongoDB"):
        settings(tmp_path, {"after": "1d", "partitions": "drop"}, **mongo)
    with pytest.raises(ConfigError, match="time of a row"):
        settings(tmp_path, {"after": "1d"}, outbox={})
    assert settings(tmp_path, {"consumers": ["shop:app"]}, outbox={}).retention is not None
