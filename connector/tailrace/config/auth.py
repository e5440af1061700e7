"""Settings of logins with tokens: OAuth, AWS IAM, or a provider of an installed package."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo, model_validator

from tailrace.auth.aws import MskToken, RdsToken
from tailrace.auth.oauth import OAuthClient
from tailrace.auth.plugins import PluginToken
from tailrace.auth.tokens import TokenProvider
from tailrace.config.kafka_settings import Setting, hidden_settings, revealed, setting_value, wrong
from tailrace.config.secrets import Secret, setting_secret
from tailrace.config.section import Section


def valid_token_url(text: str) -> str:
    """Requires TLS, except on this machine: the client's secret is sent there."""
    parts = urlsplit(text) if re.fullmatch(r"https?://[^\s@#]+", text) else None
    host = (parts.hostname or "") if parts else ""
    if not host or (text.startswith("http:") and not _is_loopback(host)):
        raise wrong(
            "the https:// address of the token endpoint, without user and password",
            "write it like `token_url: https://login.example.org/oauth2/token`",
        )
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def hidden_secret(given: object) -> object:
    return setting_secret("client_secret", given) if isinstance(given, str | Secret) else given


def existing_file(path: Path, info: ValidationInfo) -> Path:
    """Resolves a file relative to the pipeline's file."""
    base = (info.context or {}).get("folder")
    found = path if base is None else base / path
    if base is not None and not found.is_file():
        raise wrong("a file that exists, relative to the pipeline's file", "create the file, or correct its name")
    return found


Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d+$")]
Texts = dict[str, str]


class OAuthSettings(Section):
    """An OAuth client that gets tokens by client credentials."""

    token_url: Annotated[str, AfterValidator(valid_token_url)] = Field(
        description="the https address of the token endpoint", examples=["https://login.example.org/oauth2/token"]
    )
    """Address of the token endpoint."""
    client_id: str = Field(min_length=1, description="the id of the client", examples=["tailrace"])
    """Id of the client."""
    client_secret: Annotated[Secret, BeforeValidator(hidden_secret)] = Field(
        description="the secret of the client", examples=["${env:CLIENT_SECRET}"]
    )
    """Secret of the client. It is sent with HTTP Basic authentication."""
    scope: str = Field(default="", description="scopes separated by spaces", examples=["kafka"])
    """Scopes to ask for, separated by spaces."""
    parameters: Texts = Field(default={}, description="parameters by name", examples=["{audience: kafka}"])
    """Further parameters for the token endpoint. They are not secret."""
    extensions: Texts = Field(default={}, description="texts by name", examples=["{logicalCluster: lkc-1}"])
    """SASL extensions, which some providers of Kafka need."""
    ca_file: Annotated[Path, AfterValidator(existing_file)] | None = Field(
        default=None, description="a file of certificates in PEM form", examples=["idp-ca.pem"]
    )
    """Certificates that the token endpoint is verified with. Default: those of the system."""

    def provider(self) -> OAuthClient:
        return OAuthClient(
            self.token_url,
            self.client_id,
            self.client_secret.reveal(),
            self.scope,
            tuple(sorted(self.parameters.items())),
            tuple(sorted(self.extensions.items())),
            str(self.ca_file or ""),
        )


class AwsIamSettings(Section):
    """AWS credentials as botocore finds them: environment, profile, container, web identity, instance."""

    region: Region = Field(description="a region of AWS", examples=["eu-central-1"])
    """Region of the cluster or database."""
    profile: str = Field(default="", description="a profile of the AWS configuration", examples=["production"])
    """Profile of the AWS configuration. Default: the usual search for credentials."""


ProviderOptions = Annotated[
    dict[str, Annotated[Setting, PlainValidator(setting_value)]], AfterValidator(hidden_settings)
]


class TokenAuth(Section):
    """What both kinds of servers have. One of the settings is given."""

    aws_iam: AwsIamSettings | None = Field(
        default=None, description="settings such as `region: eu-central-1`", examples=["{region: eu-central-1}"]
    )
    """Logins with AWS IAM. Needs the extra `aws`."""
    provider: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,64}$", description="a name", examples=["gcp"])
    """Name of a token provider of an installed package (an entry point of the group `tailrace.auth`)."""
    options: ProviderOptions = Field(default={}, description="options by name", examples=["{audience: kafka}"])
    """Options of the `provider`."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [name for name in type(self).model_fields if name != "options"]
        if sum(bool(getattr(self, name)) for name in ways) != 1:
            raise wrong(f"exactly one of {', '.join(ways)}", "choose one way to log in")
        if self.options and not self.provider:
            raise wrong("a provider, because there are options for one", "remove the options, or name the provider")
        return self

    def _texts(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((name, str(value)) for name, value in revealed(self.options).items()))


class KafkaAuth(TokenAuth):
    """Logins to Kafka with tokens (SASL/OAUTHBEARER): one of `oauth`, `aws_iam` and `provider`."""

    oauth: OAuthSettings | None = Field(
        default=None,
        description="settings such as `token_url: https://…`",
        examples=["{token_url: 'https://login.example.org/oauth2/token', client_id: tailrace, client_secret: …}"],
    )
    """Tokens of an OAuth or OIDC server."""

    def token_provider(self) -> TokenProvider:
        if self.oauth is not None:
            return self.oauth.provider()
        if self.aws_iam is not None:
            return MskToken(self.aws_iam.region, self.aws_iam.profile)
        return PluginToken(self.provider, "kafka", self._texts())


class PostgresAuth(TokenAuth):
    """Logins to Postgres with tokens instead of a password: one of `aws_iam` and `provider`."""

    def token_provider(self, host: str, port: int, user: str) -> TokenProvider:
        if self.aws_iam is not None:
            return RdsToken(self.aws_iam.region, host, port, user, self.aws_iam.profile)
        return PluginToken(self.provider, "postgres", self._texts(), host, port, user)


OWN_SETTINGS = re.compile(r"sasl\.(mechanisms?|username|password|oauthbearer\..*)|enable\.sasl\.oauthbearer\..*")


def require_token_login(settings: Mapping[str, Setting]) -> None:
    """Refuses librdkafka settings that contradict `kafka.auth`."""
    for name in settings:
        if OWN_SETTINGS.fullmatch(name.lower()):
            raise wrong("nothing beside kafka.auth", "remove it, or remove kafka.auth", "kafka", "settings", name)
    protocol = str(settings.get("security.protocol", "sasl_ssl")).lower()
    if protocol not in ("sasl_ssl", "sasl_plaintext"):
        raise wrong(
            "SASL_SSL, because kafka.auth logs in", "remove it: SASL_SSL is the default with kafka.auth",
            "kafka", "settings", "security.protocol",
        )  # fmt: skip
