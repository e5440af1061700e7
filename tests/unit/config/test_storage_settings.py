"""docs/layouts.md: each setting of a polling publisher of a storage outbox has a counterpart that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
KEYS = {
    "database": "table_name dlq_table_name wal_table_name",
    "publisher": "batch_size poll_interval_ms max_concurrent_publishers enable_wal_integration",
    "retry_policy": "default_max_attempts default_base_delay_ms default_max_delay_ms default_backoff_multiplier "
    "enable_jitter jitter_range",
    "dlq": "auto_dlq_after_max_retries dlq_notification_enabled dlq_retention_days enable_manual_replay",
    "validation": "enable_schema_validation enable_business_rule_validation schema_registry_url",
    "monitoring": "enable_metrics metrics_prefix enable_health_checks alert_on_dlq_events",
}
NAMES = [f"{section}.{key}" for section, keys in KEYS.items() for key in keys.split()]


@pytest.fixture(scope="module")
def rows() -> list[list[str]]:
    """The cells of the table that begins with "there | here", by line."""
    page = (DOCS / "layouts.md").read_text()
    table = page.split("Each key of a configuration file for a polling publisher")[1].split("\n\n")[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_every_key_has_a_row(rows: list[list[str]]) -> None:
    assert sorted(name for there, _, _ in rows for name in re.findall(r"`(.+?)`", there)) == sorted(NAMES)


def test_every_counterpart_is_a_setting_or_is_explained(rows: list[list[str]]) -> None:
    settings = set(re.findall(r"^\| `([\w.]+)` \|", (DOCS / "configuration.md").read_text(), re.MULTILINE))
    for there, here, explanation in rows:
        named = re.findall(r"`([\w.]+)`", here) + re.findall(r"`((?:retries|limits|source)\.[\w.]+)`", explanation)
        assert set(named) <= settings, there
        assert named or explanation, there
