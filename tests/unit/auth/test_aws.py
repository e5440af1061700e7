"""AWS IAM tokens: signatures as AWS verifies them, and errors about credentials that name what is missing."""

from __future__ import annotations

import base64
import re
import time
from pathlib import Path

import pytest

from helpers.sigv4 import parameters, signature
from tailrace.auth.aws import VALID_SECONDS, MskToken, RdsToken
from tailrace.errors import ConfigError, TokenRefused, TokenUnavailable

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
PUBLISHED = (
    "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z"
    "&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature="
)
"""The example of a presigned URL in the documentation of Amazon S3, with the key and secret above."""


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def credentials(_no_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def test_our_verifier_agrees_with_the_published_example() -> None:
    expected = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    assert signature(PUBLISHED, SECRET, body_hash="UNSIGNED-PAYLOAD") == expected


@pytest.mark.usefixtures("credentials")
def test_a_token_for_msk() -> None:
    before = time.time()
    token = MskToken("eu-central-1").fetch()
    assert before + VALID_SECONDS <= token.expires_at <= time.time() + VALID_SECONDS
    assert "=" not in token.value
    url = base64.urlsafe_b64decode(token.value + "==").decode()
    assert url.startswith("https://kafka.eu-central-1.amazonaws.com/?")
    found = parameters(url)
    assert (found["Action"], found["X-Amz-Expires"], found["X-Amz-SignedHeaders"]) == (
        "kafka-cluster:Connect",
        "900",
        "host",
    )
    assert re.fullmatch(rf"{KEY}/\d{{8}}/eu-central-1/kafka-cluster/aws4_request", found["X-Amz-Credential"])
    assert found["X-Amz-Signature"] == signature(url, SECRET)
    assert found["X-Amz-Signature"] != signature(url, SECRET + "x")
    assert found["User-Agent"].startswith("tailrace/")
    assert SECRET not in repr(token) + url


@pytest.mark.usefixtures("credentials")
def test_a_token_of_a_session_for_rds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session/token+1==")
    token = RdsToken("us-west-2", "db.example.org", 5433, "tail race").fetch()
    assert token.value.startswith("db.example.org:5433/?")
    url = f"https://{token.value}"
    found = parameters(url)
    assert (found["Action"], found["DBUser"]) == ("connect", "tail race")
    assert found["X-Amz-Security-Token"] == "session/token+1=="
    assert found["X-Amz-Credential"].endswith("/us-west-2/rds-db/aws4_request")
    assert found["X-Amz-Signature"] == signature(url, SECRET)


def test_a_profile(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        f"[production]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    url = f"https://{RdsToken('eu-west-1', 'db', 5432, 'u', profile='production').fetch().value}"
    assert parameters(url)["X-Amz-Signature"] == signature(url, SECRET)
    with pytest.raises(TokenRefused, match="credentials were not found") as caught:
        MskToken("eu-west-1", profile="staging").fetch()
    assert "staging" in caught.value.why


def test_no_credentials() -> None:
    with pytest.raises(TokenRefused, match="credentials were not found") as caught:
        MskToken("eu-west-1").fetch()
    assert "get-caller-identity" in caught.value.remedy


def test_an_issuer_of_credentials_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9/credentials")
    monkeypatch.setenv("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "1")
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(TokenUnavailable, match="cannot be fetched: CredentialRetrievalError"):
        MskToken("eu-west-1").fetch()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "botocore.auth", None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        MskToken("eu-west-1").fetch()
    assert "[aws]" in caught.value.remedy
