"""Settings of a worker's HTTP port: TLS, who may do what, limits, and what configurations sent over REST may use.

They are a YAML file of their own (`--http-settings`), because they belong to the worker and not to a pipeline.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from tailrace.config.kafka_settings import wrong
from tailrace.config.problems import SettingProblem, config_error, found_problems
from tailrace.config.references import UnresolvedError, has_reference, resolve
from tailrace.config.secrets import REFERENCE, Secret, remember
from tailrace.config.section import Section
from tailrace.config.values import Seconds, Whole
from tailrace.yaml_document import ExpectedContent, KeyPath, read_document

READ: Literal["read"] = "read"
ADMIN: Literal["admin"] = "admin"
Role = Literal["read", "admin"]
DOCS = "docs/worker.md"

HTTP_FILE = ExpectedContent(
    name="the settings of an HTTP port",
    setting="tokens:",
    if_absent=f"Correct the path of --http-settings. {DOCS} has an example.",
    if_empty=f"Write tokens or certificates into it. {DOCS} has an example.",
    if_other=f"Start from the example in {DOCS}.",
)
_SECRETS: tuple[KeyPath, ...] = (("tokens",), ("tls", "key_password"))
_is_token = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}").fullmatch
_is_hash = re.compile(r"sha256:[0-9a-f]{64}").fullmatch
_is_name = re.compile(r"[A-Za-z0-9_.@-]{1,64}").fullmatch
_is_alternative = re.compile(r"(dns|uri|email|ip):\S+", re.IGNORECASE).fullmatch
_is_variable = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*").fullmatch
_is_module = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*").fullmatch

TOKEN_REMEDY = "create one with `openssl rand -hex 32`"  # noqa: S105 - a remedy, not a token


def entry_name(name: str) -> str:
    if not _is_name(name):
        raise wrong("a name of letters, digits, `_`, `.`, `@` and `-`", "rename the entry, such as `prometheus`")
    return name


def long_token(given: object) -> object:
    if not isinstance(given, Secret) or not _is_token(given.reveal()):
        raise wrong(
            "a token of 16 to 512 letters, digits and `._~+/=-`",
            f"{TOKEN_REMEDY}, store it in a file, and write `token: ${{file:/path}}`",
        )
    return given


def token_hash(text: str) -> str:
    if not _is_hash(text):
        raise wrong(
            "sha256: and 64 hexadecimal digits", "take the output of `printf %s TOKEN | sha256sum`, after `sha256:`"
        )
    return text


def alternative_name(text: str) -> str:
    if not _is_alternative(text):
        raise wrong("dns:, uri:, email: or ip: and a name", "write it like `san: dns:prometheus.monitoring`")
    kind, _, name = text.partition(":")
    return f"{kind.lower()}:{name}"


def variable_name(name: str) -> str:
    if not _is_variable(name):
        raise wrong("the name of an environment variable, which may end with *", "write it like `SHOP_*`")
    return name


def module_name(name: str) -> str:
    if not _is_module(name):
        raise wrong("the name of a Python module", "write it like `shop_rules`")
    return name


def located(path: Path, info: ValidationInfo) -> Path:
    """Makes a path absolute: it is relative to the file of the settings."""
    base = (info.context or {}).get("folder")
    return path if base is None else base / path


EntryName = Annotated[str, AfterValidator(entry_name)]
LocatedPath = Annotated[Path, AfterValidator(located)]


class TlsSettings(Section):
    """TLS of the port itself. Changed files are used for new connections within seconds."""

    certificate: LocatedPath = Field(description="a PEM file", examples=["/run/tls/tls.crt"])
    """PEM file with the certificate and the intermediate certificates."""
    key: LocatedPath = Field(description="a PEM file", examples=["/run/tls/tls.key"])
    """PEM file with the private key."""
    key_password: Secret | None = Field(default=None, description="a reference", examples=["${file:/run/tls/password}"])
    """Password of the private key, as a reference."""
    client_ca: LocatedPath | None = Field(default=None, description="a PEM file", examples=["/run/tls/ca.crt"])
    """PEM file with the authorities of client certificates. A client that sends none needs a token."""


class TokenSettings(Section):
    """A token with its role: as a reference, or as its hash."""

    role: Role = Field(description="read or admin", examples=["read"])
    """`read` may read states and settings. `admin` may also change them, and read events."""
    token: Annotated[Secret, BeforeValidator(long_token)] | None = Field(
        default=None, description="a reference to a token", examples=["${file:/run/secrets/token}"]
    )
    """Reference to the token."""
    hash: Annotated[str, AfterValidator(token_hash)] | None = Field(
        default=None, description="sha256: and 64 hexadecimal digits", examples=["sha256:…"]
    )
    """SHA-256 of the token."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.token is None) == (self.hash is None):
            raise wrong("either `token` or `hash`", "write `token: ${file:/path}` or `hash: sha256:…`, not both")
        return self

    @property
    def digest(self) -> bytes:
        if self.token is not None:
            return hashlib.sha256(self.token.reveal().encode()).digest()
        return bytes.fromhex((self.hash or "").removeprefix("sha256:"))


class CertificateSettings(Section):
    """Client certificates with their role, by their subject or one of their alternative names."""

    role: Role = Field(description="read or admin", examples=["read"])
    """As for a token."""
    subject: str | None = Field(
        default=None, min_length=1, description="the subject of a certificate", examples=["CN=deployer,O=Shop"]
    )
    """The whole subject, as `openssl x509 -noout -subject -nameopt RFC2253` prints it."""
    san: Annotated[str, AfterValidator(alternative_name)] | None = Field(
        default=None, description="dns:, uri:, email: or ip: and a name", examples=["dns:prometheus.monitoring"]
    )
    """One of its alternative names."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.subject is None) == (self.san is None):
            raise wrong("either `subject` or `san`", "write `subject: CN=…` or `san: dns:…`, not both")
        return self


class RateSettings(Section):
    """Limits for each client: its token or certificate, or else its address. They need authentication."""

    requests_per_second: Seconds = Field(
        default=50, gt=0, le=100_000, description="requests, up to 100000", examples=["50"], allow_inf_nan=False
    )
    """Requests per second of one client. Further ones are answered with 429."""
    burst: Whole = Field(default=500, ge=1, le=1_000_000, description="requests, from 1 to 1000000", examples=["500"])
    """Requests that a client may send at once after a pause."""
    failures_per_minute: Whole = Field(
        default=10, ge=1, le=10_000, description="attempts, from 1 to 10000", examples=["10"]
    )
    """Wrong tokens and certificates from one address. After that it must wait, except clients that were let in
    before."""


class AllowSettings(Section):
    """What configurations from REST and from the config topic may use of this machine. Files of the folder may use
    everything."""

    files: tuple[LocatedPath, ...] = Field(
        default=(), description="a list of folders or files", examples=["[/run/secrets/pipelines]"]
    )
    """Folders, or files, that `${file:…}` and `${dir:…}` may name."""
    variables: tuple[Annotated[str, AfterValidator(variable_name)], ...] = Field(
        default=(), description="a list of names, which may end with *", examples=["[SHOP_*]"]
    )
    """Environment variables that `${env:…}` may name."""
    rules: tuple[Annotated[str, AfterValidator(module_name)], ...] = Field(
        default=(), description="a list of Python modules", examples=["[shop_rules]"]
    )
    """Modules that `rules.checks` may name. Entry points of the group `tailrace.rules` are always allowed."""


class HttpSettings(Section):
    """The file of `--http-settings`."""

    tls: TlsSettings | None = Field(
        default=None, description="settings such as `certificate: /run/tls/tls.crt`", examples=["{certificate: …}"]
    )
    behind_tls_proxy: bool = Field(default=False, description="true or false", examples=["true"])
    """Whether a proxy in front of the port terminates TLS. The client's address is then the last one of
    `X-Forwarded-For`."""
    tokens: dict[EntryName, TokenSettings] = Field(
        default={}, description="tokens by name", examples=["{ops: {role: admin, token: '${file:/run/secrets/ops}'}}"]
    )
    certificates: dict[EntryName, CertificateSettings] = Field(
        default={}, description="client certificates by name", examples=["{ops: {role: admin, subject: CN=ops}}"]
    )
    metrics: Literal["read", "open"] = Field(default="read", description="read or open", examples=["open"])
    """Whether `/metrics` needs the role `read`, or is open to everybody."""
    limits: RateSettings = Field(
        default=RateSettings(), description="settings such as `burst: 500`", examples=["{burst: 500}"]
    )
    allow: AllowSettings = Field(
        default=AllowSettings(), description="settings such as `files: […]`", examples=["{variables: ['SHOP_*']}"]
    )

    @property
    def authenticates(self) -> bool:
        """Whether requests need a token or a certificate."""
        return bool(self.tokens or self.certificates)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.certificates and (self.tls is None or self.tls.client_ca is None):
            raise wrong(
                "tls.client_ca, the authority of the client certificates",
                "add `client_ca` to `tls`, or remove `certificates`",
                "certificates",
            )
        names: dict[bytes, str] = {}
        for name, each in self.tokens.items():
            if (other := names.setdefault(each.digest, name)) != name:
                raise wrong(
                    f"another token than `{other}` has",
                    "give each name its own token: the audit log shows who did what by these names",
                    "tokens",
                    name,
                )
        return self


def load_http_settings(file: Path, environ: Mapping[str, str]) -> HttpSettings:
    """Loads and validates the file; raises ConfigError with all problems."""
    document = read_document(file, HTTP_FILE)
    problems: list[SettingProblem] = []
    folder = file.absolute().parent
    written = {name: value for name, value in document.data.items() if value is not None}
    tree = _resolved(written, (), environ, folder, problems)
    try:
        found = HttpSettings.model_validate(tree, context={"folder": folder})
    except ValidationError as error:
        known = {problem.place for problem in problems}
        invalid = found_problems(error, written, HttpSettings, _SECRETS)
        problems += [each for each in invalid if each.place not in known]
    if problems:
        raise config_error(file, problems, document.lines, {}, "start again")
    for each in found.tokens.values():
        if each.token is not None:
            remember(each.token.reveal())
    if found.tls is not None and found.tls.key_password is not None:
        remember(found.tls.key_password.reveal())
    return found


def _resolved(
    value: Any,  # noqa: ANN401 - any YAML value
    place: KeyPath,
    environ: Mapping[str, str],
    folder: Path,
    problems: list[SettingProblem],
) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {k: _resolved(v, (*place, str(k)), environ, folder, problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_resolved(v, (*place, str(i)), environ, folder, problems) for i, v in enumerate(value)]
    is_secret = (place[:1] == ("tokens",) and place[-1:] == ("token",)) or place == ("tls", "key_password")
    if is_secret and (not isinstance(value, str) or REFERENCE.sub("", value) != "" or not value):
        problems.append(
            SettingProblem(
                place,
                "is written in the file: expected a reference, so that nobody who reads the file knows it",
                f"write `{place[-1]}: ${{file:/path}}`" + (", or `hash: sha256:…`" if place[-1] == "token" else ""),
            )
        )
        return None
    if not isinstance(value, str) or not has_reference(value):
        return value
    try:
        plain = resolve(value, environ, folder)
    except UnresolvedError as error:
        problems.append(SettingProblem(place, f"cannot be resolved: {error.why}", error.remedy))
        return None
    return Secret(value, plain) if is_secret else plain
