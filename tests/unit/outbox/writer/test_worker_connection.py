"""The token for a worker: where it comes from, and that it is neither shown nor sent unencrypted."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tailrace.cli.remote import run_remote
from tailrace.errors import ConfigError
from tailrace.outbox.writer.worker_connection import authorization, open_connection

TOKEN = "token-marker-0123456789"


def test_the_token_is_a_variable_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    address = urlsplit("https://worker:8083")
    expected = {"Authorization": f"Bearer {TOKEN}"}
    assert authorization(address, {}) == {}
    assert authorization(address, {"TAILRACE_WORKER_TOKEN": TOKEN}) == expected
    assert authorization(address, {"TAILRACE_WORKER_TOKEN_FILE": str(tmp_path / "token")}) == expected


@pytest.mark.parametrize(
    ("url", "environ", "expected"),
    [
        ("http://worker:8083", {"TAILRACE_WORKER_TOKEN": TOKEN}, "sent unencrypted to worker"),
        ("http://10.0.0.1", {"TAILRACE_WORKER_TOKEN": TOKEN}, "sent unencrypted"),
        ("https://worker", {"TAILRACE_WORKER_TOKEN": f"{TOKEN} x"}, "does not give a token"),
        ("https://worker", {"TAILRACE_WORKER_TOKEN_FILE": "/none/marker-file"}, "cannot be read"),
    ],
)
def test_what_is_refused(url: str, environ: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        authorization(urlsplit(url), environ)
    assert "token-marker" not in f"{caught.value.what}{caught.value.why}{caught.value.remedy}"
    assert caught.value.remedy


def test_on_this_machine_a_token_needs_no_encryption() -> None:
    for url in ("http://127.0.0.1:8083", "http://localhost", "http://[::1]:8083"):
        assert authorization(urlsplit(url), {"TAILRACE_WORKER_TOKEN": TOKEN})


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="contains a user or password") as caught:
        run_remote(f"https://ops:{TOKEN}@worker:8083", ["status", "orders"])
    assert "marker" not in caught.value.what


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for file in ("ca.pem", "none.pem"):
        with pytest.raises(ConfigError, match="cannot be used"):
            open_connection(urlsplit("https://w"), 443, 1, {"TAILRACE_WORKER_CA": str(tmp_path / file)})
