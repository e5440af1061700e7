"""Token providers of installed packages: only entry points, never a module or class by its name."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.auth.plugins import PluginToken
from tailrace.errors import ConfigError, TokenUnavailable

CODE = """
from tailrace.auth.tokens import AccessToken
def token(request):
    return AccessToken(f"{request.service} {request.user} {request.host} {request.options['audience']}", 4e9)
def broken(request):
    raise RuntimeError("secret-4711")
def nothing(request):
    return None
"""
NAMES = {"good": "token", "broken": "broken", "nothing": "nothing", "missing": "none_such"}


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cloud_tokens_under_test.py").write_text(CODE)
    info = tmp_path / "cloud_tokens-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cloud-tokens\nVersion: 1\n")
    lines = [f"{name} = cloud_tokens_under_test:{function}\n" for name, function in NAMES.items()]
    (info / "entry_points.txt").write_text("[tailrace.auth]\n" + "".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cloud_tokens_under_test", raising=False)


def test_a_provider() -> None:
    token = PluginToken("good", "postgres", (("audience", "a"),), "db", 5432, "u").fetch()
    assert token.value == "postgres u db a"
    assert token.expires_at > time.time()


@pytest.mark.parametrize("name", ["unknown", "os:system", "cloud_tokens_under_test:token", "builtins"])
def test_only_names_of_entry_points(name: str) -> None:
    with pytest.raises(ConfigError, match="no installed package has a token provider") as caught:
        PluginToken(name, "kafka").fetch()
    assert "good" in caught.value.why


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("broken", TokenUnavailable, "fails with RuntimeError"),
        ("nothing", ConfigError, "returned no token"),
        ("missing", ConfigError, "cannot be loaded: AttributeError"),
    ],
)
def test_a_provider_that_fails(name: str, error: type[Exception], text: str) -> None:
    provider: Callable[[], object] = PluginToken(name, "kafka", (("audience", "a"),)).fetch
    with pytest.raises(error, match=text) as caught:
        provider()
    assert "secret-4711" not in str(caught.value)
