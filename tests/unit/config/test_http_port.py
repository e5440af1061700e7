"""Settings of an HTTP port: what is refused, and that no secret is in the error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.http_port import AllowSettings, HttpSettings, RateSettings, TlsSettings, load_http_settings
from tailrace.config.problems import all_places
from tailrace.errors import ConfigError

TOKEN = "secret-marker-0123456789"
DOCS = Path(__file__).parents[3] / "docs" / "worker.md"


def load(folder: Path, text: str) -> HttpSettings:
    file = folder / "http.yaml"
    file.write_text(text)
    (folder / "token").write_text(f"{TOKEN}\n")
    return load_http_settings(file, {"TOKEN": TOKEN})


def refusal(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    error = caught.value
    assert "marker" not in f"{error.what}{error.why}{error.remedy}"
    assert error.remedy
    return error


def test_a_whole_file(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        """
tls: {certificate: tls.crt, key: /run/tls.key, client_ca: ca.crt}
tokens:
  ops: {role: admin, token: '${file:token}'}
  old: {role: read, hash: 'sha256:0000000000000000000000000000000000000000000000000000000000000000'}
certificates:
  deployer: {role: admin, subject: 'CN=deployer,O=Shop'}
  prometheus: {role: read, san: 'DNS:prometheus'}
limits: {burst: 3}
allow: {files: [secrets], variables: [SHOP_*], rules: [shop_rules]}
metrics: open
""",
    )
    assert found.authenticates
    assert found.tls is not None
    assert found.tls.certificate == tmp_path / "tls.crt"
    assert found.tls.key == Path("/run/tls.key")
    assert found.allow.files == (tmp_path / "secrets",)
    assert found.certificates["prometheus"].san == "dns:prometheus"
    assert TOKEN not in repr(found)
    assert TOKEN not in found.model_dump_json()
    assert load_http_settings(tmp_path / "http.yaml", {}) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"tokens: {{ops: {{role: admin, token: {TOKEN}}}}}", "tokens.ops.token is written in the file"),
        ("tokens: {ops: {role: admin, token: 'x${env:TOKEN}'}}", "tokens.ops.token is written in the file"),
        ("tokens: {ops: {role: admin, token: '${env:NONE}'}}", "NONE is not set"),
        ("tokens: {ops: {role: admin}}", "either `token` or `hash`"),
        ("tokens: {ops: {role: owner, token: '${env:TOKEN}'}}", "expected read or admin"),
        ("tokens: {ops: {role: admin, hash: 'sha256:12'}}", "64 hexadecimal digits"),
        ("tokens: {ops: {rule: admin}}", "tokens.ops.rule is not a setting"),
        (
            "tokens: {a: {role: admin, token: '${env:TOKEN}'}, b: {role: read, token: '${env:TOKEN}'}}",
            "another token",
        ),
        ("tokens: {'o p': {role: admin, token: '${env:TOKEN}'}}", "a name of letters"),
        ("certificates: {a: {role: read, subject: CN=a}}", "tls.client_ca"),
        ("certificates: {a: {role: read, san: prometheus}}", "dns:, uri:, email: or ip:"),
        ("tls: {certificate: a, key: b, key_password: marker}", "tls.key_password is written in the file"),
        ("limits: {requests_per_second: 0}", "requests, up to"),
        ("allow: {variables: ['*A']}", "the name of an environment variable"),
        ("allow: {rules: ['os;']}", "the name of a Python module"),
        ("nonsense: 1", "is not a setting: expected one of tls"),
        ("[]", "is not the settings of an HTTP port"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    error = refusal(tmp_path, text)
    assert expected in f"{error.what} {error.why}"


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="16 to 512"):
        load(tmp_path, "tokens: {ops: {role: admin, token: '${file:http.yaml}'}}")


def test_the_docs_name_every_setting() -> None:
    text = DOCS.read_text()
    places = [".".join(place) for place in all_places(HttpSettings)]
    assert {"tls.client_ca", "limits.burst", "allow.files"} <= set(places)
    for model in (HttpSettings, TlsSettings, RateSettings, AllowSettings):
        for name in model.model_fields:
            assert f"`{name}`" in text or f"{name}:" in text, name
