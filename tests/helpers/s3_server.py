"""A bucket on loopback: the part of the S3 protocol that an archive uses, over HTTP.

Objects are put (only if the name is free, if requested), fetched, listed and deleted. Signatures are not checked.
`moto` does more, but needs a python-dateutil version that conflicts with ours.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

STAMP = "2026-03-01T12:00:00.000Z"


class Bucket:
    """Tests may read and change `objects`."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.port = 0
        self.exclusive = True
        """Whether it supports creating an object only if the name is free."""

    @property
    def settings(self) -> dict[str, object]:
        """The setting `archive:` of a pipeline."""
        options = {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "allow_http": True,
            "region": "eu-central-1",
            "access_key_id": "AKIDEXAMPLE",
            "secret_access_key": "wJalrXUtnFEMI",
        }
        return {"url": "s3://cold/outbox", "options": options}


def _handler(bucket: Bucket) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing."""

        def _key(self) -> str:
            return unquote(urlsplit(self.path).path).removeprefix("/cold").removeprefix("/")

        def _answer(self, code: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), "Last-Modified": "Sun, 01 Mar 2026 12:00:00 GMT",
                                **(headers or {})}.items():  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with bucket.lock:
                asked = bucket.exclusive and self.headers.get("If-None-Match") == "*"
                if asked and self._key() in bucket.objects:
                    self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                    return
                bucket.objects[self._key()] = body
            self._answer(200, headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

        def do_GET(self) -> None:
            if not self._key():
                self._list(parse_qs(urlsplit(self.path).query).get("prefix", [""])[0])
                return
            body = bucket.objects.get(self._key())
            if body is None:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            self._answer(200, body, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            """Deletes several objects at once; single ones are deleted this way as well."""
            asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
            keys = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", asked)]
            for key in keys:
                bucket.objects.pop(key, None)
            done = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())

        def _list(self, prefix: str) -> None:
            found = "".join(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{STAMP}</LastModified><ETag>x</ETag>"
                f"<Size>{len(body)}</Size></Contents>"
                for key, body in sorted(bucket.objects.items())
                if key.startswith(prefix)
            )
            self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode())

    return Handler


@contextmanager
def serve() -> Iterator[Bucket]:
    bucket = Bucket()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(bucket))
    bucket.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
