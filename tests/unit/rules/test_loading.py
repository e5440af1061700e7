"""Tests of loading.py: rules by name, and the errors for names that cannot be loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.rules.loading import load

MODULE = """
LIMIT = 5
def positive(event): return None
class Rules:
    @staticmethod
    def nested(event): return None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with modules, and a package with entry points."""
    (tmp_path / "shop_rules_under_test.py").write_text(MODULE)
    (tmp_path / "broken_rules_under_test.py").write_text("import a_module_that_is_missing")
    (tmp_path / "failing_rules_under_test.py").write_text("raise SystemExit(1)")
    info = tmp_path / "shop_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tailrace.rules]\npositive = shop_rules_under_test:positive\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("shop", "broken", "failing"):
        monkeypatch.delitem(sys.modules, f"{name}_rules_under_test", raising=False)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["shop_rules_under_test:positive", "shop_rules_under_test:Rules.nested", "positive"])
def test_a_rule_is_loaded(name: str) -> None:
    assert callable(load(name))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no_such_module:check", "there is no module no_such_module"),
        ("shop_rules_under_test.inner:check", "there is no module shop_rules_under_test.inner"),
        ("shop_rules_under_test:absent", "shop_rules_under_test has no absent"),
        ("shop_rules_under_test:LIMIT", "LIMIT is of type int"),
        ("broken_rules_under_test:check", "raises ModuleNotFoundError"),
        ("failing_rules_under_test:check", "raises SystemExit"),
        ("absent", "no installed package has an entry point"),
    ],
)
def test_a_rule_that_cannot_be_loaded_is_named(name: str, expected: str) -> None:
    with pytest.raises(ConfigError, match="the rule ") as raised:
        load(name)
    assert expected in raised.value.what
    assert raised.value.remedy


def test_an_entry_point_of_two_packages_is_refused(folder: Path) -> None:
    info = folder / "other_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tailrace.rules]\npositive = other_rules:positive\n")
    with pytest.raises(ConfigError, match="ambiguous"):
        load("positive")
