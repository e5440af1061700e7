"""The protection of an HTTP port: its settings, which are read again while it runs, and what may not be open."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

from starlette.types import ASGIApp

from tailrace.api.browsers import BrowserGuard
from tailrace.api.guard import AccessGuard
from tailrace.api.server import is_loopback
from tailrace.api.tls import RotatingTls
from tailrace.config.allowed import Allowed
from tailrace.config.http_port import HttpSettings, load_http_settings
from tailrace.config.machine_credentials import LIBPQ_LOGINS
from tailrace.errors import ConfigError, PortUnprotected, TailraceError
from tailrace.worker.logs import StructuredLogger

RELOAD_SECONDS = 2.0
"""How often the files are read again: tokens and certificates are replaced without a restart."""


class PortProtection:
    """Settings and certificates of a port. Without a file, nothing is authenticated."""

    def __init__(self, file: Path | None) -> None:
        """Raises ConfigError if the file, or a file that it names, cannot be used."""
        self._file = file
        self.settings = HttpSettings() if file is None else load_http_settings(file, os.environ)
        self._tls = RotatingTls(self.settings.tls) if self.settings.tls is not None else None
        self._log = StructuredLogger("tailrace.http")
        self._problem = ""
        self._allow_in_file = self.settings.allow

    @property
    def scheme(self) -> str:
        return "https" if self._tls is not None else "http"

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context of the listener."""
        return self._tls.context if self._tls is not None else None

    @property
    def allowed(self) -> Allowed:
        """What configurations that are sent over REST may use of this machine."""
        found = self.settings.allow
        logins = tuple(each for each in LIBPQ_LOGINS if os.environ.get(each))
        return Allowed(found.files, found.variables, found.rules, logins)

    def guarded(self, app: ASGIApp, host: str) -> ASGIApp:
        """Returns the app with its guards."""
        # A page under another name has no credentials for it. Without authentication, it would not need any.
        is_local = is_loopback(host) and not self.settings.authenticates
        return AccessGuard(BrowserGuard(app, loopback=is_local), lambda: self.settings)

    def require_protected(self, host: str, port: int) -> None:
        """Raises PortUnprotected if other machines could reach the port without authentication or encryption."""
        _require(self.settings, host, port)

    async def follow(self, host: str, port: int) -> None:
        """Reads the files again, until it is cancelled. An error is logged once, and the settings before stay."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                changed = await asyncio.to_thread(self._reload, host, port)
            except TailraceError as error:
                if error.what != self._problem:
                    self._log.warning(
                        "settings of the HTTP port not changed", what=error.what, why=error.why, remedy=error.remedy
                    )
                self._problem = error.what
            else:
                self._problem = ""
                if changed:
                    self._log.info("settings of the HTTP port changed", what=", ".join(changed))

    def _reload(self, host: str, port: int) -> list[str]:
        """Returns what has changed."""
        if self._file is None:
            return []
        new = load_http_settings(self._file, os.environ)
        if (new.tls is None) != (self._tls is None):
            raise ConfigError(
                f"{self._file} now {'lacks' if new.tls is None else 'has'} `tls`",
                why="A port that is open cannot change between plain HTTP and TLS.",
                remedy="Restart the worker.",
            )
        _require(new, host, port)
        changed = []
        if new.allow != self._allow_in_file:
            self._allow_in_file = new.allow
            changed.append("allow (used after a restart)")
        new = new.model_copy(update={"allow": self.settings.allow})  # running pipelines were checked against it
        if self._tls is not None and new.tls is not None and self._tls.reload(new.tls):
            changed.append("certificates")
        if new != self.settings:
            self.settings = new
            changed.append("settings")
        return changed


def _require(settings: HttpSettings, host: str, port: int) -> None:
    if is_loopback(host) and not settings.behind_tls_proxy:
        return
    address = f"{host}:{port}"
    if not settings.authenticates:
        raise PortUnprotected(
            f"other machines could use the HTTP port {address} without authentication",
            why="Whoever reaches the port, or the proxy of `behind_tls_proxy`, can read and change pipelines.",
            remedy="Give a file with tokens or client certificates: --http-settings http.yaml (docs/worker.md). Or "
            "listen on this machine only, such as --http 127.0.0.1:8083, without `behind_tls_proxy`.",
        )
    if settings.tls is None and not settings.behind_tls_proxy:
        raise PortUnprotected(
            f"tokens would be sent unencrypted to the HTTP port {address}",
            why="Its settings have no `tls`, and other machines can reach it.",
            remedy="Add `tls: {certificate: …, key: …}`. If a proxy in front of the port terminates TLS, write "
            "`behind_tls_proxy: true` and let only the proxy reach the port.",
        )
