"""AWS IAM tokens: presigned requests (Signature Version 4) that Amazon MSK and Amazon RDS accept as logins.

A token is not fetched from a server: it is signed here, with credentials that botocore finds (environment, profile,
container, web identity, instance). MSK and RDS verify the signature, and accept a token for 15 minutes.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tailrace import __version__
from tailrace.auth.tokens import AccessToken
from tailrace.errors import ConfigError, TokenRefused, TokenUnavailable, install_remedy

VALID_SECONDS = 900
_REMEDY = (
    "Give this process credentials of AWS: a role of its pod, task or instance, a profile, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY. `aws sts get-caller-identity` shows which ones are found."
)


@dataclass(frozen=True, slots=True)
class MskToken:
    """Logins to a cluster of Amazon MSK, by SASL/OAUTHBEARER."""

    region: str
    profile: str = ""

    def fetch(self) -> AccessToken:
        began = time.time()
        address = f"https://kafka.{self.region}.amazonaws.com/"
        url = presigned(self, "kafka-cluster", address, {"Action": "kafka-cluster:Connect"})
        url += f"&User-Agent=tailrace%2F{__version__}"
        return AccessToken(base64.urlsafe_b64encode(url.encode()).decode().rstrip("="), began + VALID_SECONDS)


@dataclass(frozen=True, slots=True)
class RdsToken:
    """Logins of a database user to Amazon RDS or Aurora, as a password."""

    region: str
    host: str
    port: int
    user: str
    profile: str = ""

    def fetch(self) -> AccessToken:
        began = time.time()
        address = f"https://{self.host}:{self.port}/"
        url = presigned(self, "rds-db", address, {"Action": "connect", "DBUser": self.user})
        return AccessToken(url.removeprefix("https://"), began + VALID_SECONDS)


def presigned(login: MskToken | RdsToken, service: str, address: str, parameters: Mapping[str, str]) -> str:
    """Returns the URL of a GET request, signed with the credentials that botocore finds."""
    try:
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            PartialCredentialsError,
            ProfileNotFound,
        )
        from botocore.session import Session
    except ImportError:
        raise ConfigError("aws_iam needs a library that is not installed", remedy=install_remedy("aws")) from None
    request = AWSRequest(method="GET", url=f"{address}?{urlencode(parameters)}")
    try:
        found: Any = Session(profile=login.profile or None).get_credentials()
        SigV4QueryAuth(found and found.get_frozen_credentials(), service, login.region, VALID_SECONDS).add_auth(request)
    except (NoCredentialsError, PartialCredentialsError, ProfileNotFound) as error:
        raise TokenRefused("AWS credentials were not found", why=f"{error}.", remedy=_REMEDY) from None
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        raise TokenRefused(f"AWS refuses to issue credentials: {code}", remedy=_REMEDY) from None
    except BotoCoreError as error:
        raise TokenUnavailable(
            f"AWS credentials cannot be fetched: {type(error).__name__}",
            why="The service that issues them does not answer, or refuses.",
            remedy=f"{_REMEDY} Tailrace retries by itself.",
        ) from None
    return str(request.url)
