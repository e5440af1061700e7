"""OAuth 2 tokens by client credentials (RFC 6749, section 4.4), as OIDC providers issue them.

Redirects are not followed: they would send the secret to an address that nobody chose. Messages contain neither the
answer of the token server nor the secret.
"""

from __future__ import annotations

import base64
import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import quote_plus, urlencode, urlsplit

import orjson

from tailrace.auth.tokens import AccessToken
from tailrace.connection_causes import certificate_error
from tailrace.errors import ConfigError, TokenRefused, TokenUnavailable

MAX_BYTES = 1 << 20
DEFAULT_SECONDS = 300.0
"""The life of a token whose server does not say how long it lives."""
MAY_PASS = (408, 425, 429)
"""Statuses that are retried, like all from 500."""
_ERROR_CODE = re.compile(r"[a-z_]{1,60}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client of a token server. `parameters` are sent to it, `extensions` to Kafka."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    extensions: tuple[tuple[str, str], ...] = ()
    ca_file: str = ""
    """Trusted authorities for the token server. Empty: those of the system."""
    timeout: float = 10.0

    def fetch(self) -> AccessToken:
        began = time.time()
        answer = self._ask()
        token = answer.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
            raise self._unavailable("its answer has no access_token")
        if str(answer.get("token_type", "bearer")).lower() != "bearer":
            raise self._unavailable("its token is not a bearer token")
        try:
            seconds = float(answer.get("expires_in", DEFAULT_SECONDS))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            seconds = 0.0
        if not 0 < seconds < 10**9:
            raise self._unavailable("its token has no valid expires_in")
        return AccessToken(token, began + seconds, self.client_id, dict(self.extensions))

    def _ask(self) -> dict[str, object]:
        form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        login = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}".encode()
        request = urllib.request.Request(  # noqa: S310 - the settings allow http and https only
            self.token_url,
            urlencode({**form, **dict(self.parameters)}).encode(),
            {"Authorization": f"Basic {base64.b64encode(login).decode()}", "Accept": "application/json"},
        )
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=self._trust()))
        try:
            with opener.open(request, timeout=self.timeout) as response:
                body = response.read(MAX_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error.code, error.read(MAX_BYTES))
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            if (invalid := certificate_error(str(cause), f"the token server {self._host}", "ca_file")) is not None:
                raise invalid from None
            raise self._unavailable(f"it does not answer ({type(cause).__name__})") from None
        try:
            answer = orjson.loads(body)
        except ValueError:
            raise self._unavailable("its answer is not JSON") from None
        if not isinstance(answer, dict):
            raise self._unavailable("its answer is not a JSON object")
        return answer

    def _trust(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise ConfigError(
                f"the certificates of the token server cannot be read: {self.ca_file}",
                why=f"{error.strerror or error}.",
                remedy="Name a file of certificates in PEM form in kafka.auth.oauth.ca_file.",
            ) from None

    @property
    def _host(self) -> str:
        parts = urlsplit(self.token_url)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

    def _refused(self, status: int, body: bytes) -> NoReturn:
        if status >= 500 or status in MAY_PASS:
            raise self._unavailable(f"it answers with status {status}")
        try:
            code = str(orjson.loads(body)["error"])
        except (ValueError, TypeError, KeyError):
            code = ""
        said = f" ({code})" if _ERROR_CODE.fullmatch(code) else ""
        raise TokenRefused(
            f"the token server {self._host} refuses to issue a token: status {status}{said}",
            why="The client id or secret is wrong, the client lacks the scope, or the address is not its token "
            "endpoint.",
            remedy="Correct kafka.auth.oauth: token_url, client_id, client_secret, scope. Then start again. No events "
            "were lost.",
        )

    def _unavailable(self, why: str) -> TokenUnavailable:
        return TokenUnavailable(
            f"the token server {self._host} issues no token: {why}",
            why="Without a valid token, Kafka refuses new connections.",
            remedy="Check the server and kafka.auth.oauth.token_url. Tailrace retries by itself.",
        )
