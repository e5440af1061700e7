"""The registry's options, and what importing its client costs; questions need a registry (see tests/integration)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions

SECRET = "hunter2-xyz"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry:8081",
        "ftp://registry",
        "mock://registry",
        "file:///etc/passwd",
        "http://",
        "http://registry:99999",
        "http://registry:0",
        "http://registry:port",
        "http://[registry",
        "http://one,http://two",
        "http://registry?token=abc",
        "http://registry#part",
        "http://regis try",
    ],
)
def test_a_url_that_is_not_one_http_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="registry's url"):
        RegistryOptions(url)


@pytest.mark.parametrize("url", [f"https://user:{SECRET}@registry", f"https://{SECRET}@registry"])
def test_credentials_in_the_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RegistryOptions(url)
    assert SECRET not in str(refused.value)
    assert "basic.auth.user.info" in refused.value.remedy


def test_settings_are_not_shown() -> None:
    options = RegistryOptions("http://registry", {"basic.auth.user.info": f"me:{SECRET}"})
    assert SECRET not in repr(options)


@pytest.mark.parametrize("name", ["max.retries", "url", "timeout", "cache.capacity", "basic.auth.user"])
def test_a_setting_that_is_unknown_or_ours_to_decide_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")) as refused:
        RegistryOptions("http://registry", {name: SECRET})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_a_timeout_must_be_above_zero(timeout: float) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        RegistryOptions("http://registry", {}, timeout)


@pytest.mark.parametrize(
    "settings",
    [
        {"basic.auth.user.info": SECRET},
        {"ssl.key.location": SECRET},
        {"bearer.auth.credentials.source": SECRET},
        {"bearer.auth.credentials.source": "STATIC_TOKEN"},
        {"bearer.auth.unheard.of": SECRET},
    ],
)
def test_settings_that_do_not_fit_together_are_refused_without_showing_them(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="fit together") as refused:
        RegistryClient(RegistryOptions("http://registry", settings))
    assert SECRET not in str(refused.value)


def test_a_certificate_that_cannot_be_read_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="certificate or key"):
        RegistryClient(RegistryOptions("https://registry", {"ssl.ca.location": str(tmp_path / "none.pem")}))
    (tmp_path / "not.pem").write_text("not a certificate")
    with pytest.raises(ConfigError, match="certificate or key"):
        RegistryClient(RegistryOptions("https://registry", {"ssl.ca.location": str(tmp_path / "not.pem")}))


def test_a_pipeline_without_a_registry_does_not_load_its_client() -> None:
    program = (
        "import sys\n"
        "import tailrace.schemas.registry.client, tailrace.schemas.registry.cache\n"
        "heavy = {'httpx', 'httpx2', 'authlib', 'confluent_kafka'} & {name.partition('.')[0] for name in sys.modules}\n"
        "print('loaded:', *sorted(heavy))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.stdout.strip(), ended.stderr) == ("loaded:", "")
