"""A token server for tests: OAuth client credentials over HTTPS, tokens as signed JWTs, and their public keys."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote_plus

from joserfc import jwk, jwt

from helpers.tls import HOST, Certificates

CLIENT, SECRET = "tailrace", "client-s3cret/+4711"
Respond = Callable[[], tuple[int, bytes]]


class TokenServer:
    """`url` issues tokens; `jwks` has the keys, over HTTP for the broker. Change `respond` to make it fail."""

    def __init__(self, certificates: Certificates, *, seconds: int = 300) -> None:
        self.seconds = seconds
        """How long its tokens are valid."""
        self.issued = 0
        self.asked = 0
        self.requests: list[dict[str, str]] = []
        self.respond: Respond | None = None
        self._key = jwk.RSAKey.generate_key(2048, {"kid": "tests", "use": "sig", "alg": "RS256"})
        self._plain = ThreadingHTTPServer((HOST, 0), self._handler())
        self._tls = ThreadingHTTPServer((HOST, 0), self._handler())
        self.present(certificates.server())
        self.url = f"https://{HOST}:{self._tls.server_port}/token"
        self.jwks = f"http://{HOST}:{self._plain.server_port}/jwks"

    def present(self, context: ssl.SSLContext) -> None:
        """Uses this certificate for TLS; before it is entered."""
        self._tls.socket = context.wrap_socket(self._tls.socket, server_side=True, do_handshake_on_connect=False)

    def __enter__(self) -> Self:
        for server in (self._plain, self._tls):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._plain, self._tls):
            server.shutdown()
            server.server_close()

    def token(self, **claims: Any) -> str:
        now = int(time.time())
        return jwt.encode(
            {"alg": "RS256", "kid": "tests"},
            {"sub": CLIENT, "aud": "kafka", "iat": now, "exp": now + self.seconds, "jti": str(self.issued), **claims},
            self._key,
        )

    def _answer(self, form: dict[str, str], login: str) -> tuple[int, bytes]:
        self.asked += 1
        self.requests.append(form)
        if self.respond is not None:
            return self.respond()
        user, _, password = base64.b64decode(login.removeprefix("Basic ")).decode().partition(":")
        if (unquote_plus(user), unquote_plus(password)) != (CLIENT, SECRET):
            return 401, json.dumps({"error": "invalid_client"}).encode()
        self.issued += 1
        answer = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.seconds}
        return 200, json.dumps(answer).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, json.dumps({"keys": [server._key.as_dict(private=False)]}).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                self._send(*server._answer(form, self.headers.get("Authorization", "")))

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", server.url)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
