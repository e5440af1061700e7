"""A pipeline that calls a webhook for dead letters, and one whose webhook hangs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from helpers.shop import Shop
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import read_all

GOOD = json.dumps({"order": "k", "revision": 1, "amount": 1.5, "currency": "EUR"})
BAD = GOOD.replace("EUR", "euro")


@contextmanager
def listening() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook that remembers what it was told."""
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.append({**json.loads(body), "authorization": self.headers["Authorization"]})
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_webhook_is_told_of_a_new_reason(shop: Shop) -> None:
    with listening() as (url, told):
        shop.configure(dead_letters={"webhook": {"url": url, "headers": {"Authorization": "Bearer hunter2-xyz"}}})
        connector = shop.start()
        shop.insert(BAD)
        wait_until(lambda: told, 60, what="the call")
        connector.stop()
    first = told[0]
    assert (first["pipeline"], first["reason"], first["type"]) == (shop.name, "schema_validation_failed", "OrderPlaced")
    assert (first["dead_letter_topic"], first["authorization"]) == (shop.letters, "Bearer hunter2-xyz")
    assert "hunter2" not in connector.log


def test_a_webhook_that_hangs_holds_nothing_up(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/T0KEN"
        headers = {"Authorization": "Bearer hunter2-xyz"}
        shop.configure(dead_letters={"webhook": {"url": url, "timeout": 60, "headers": headers}})
        connector = shop.start()
        for _ in range(50):
            shop.insert(BAD)
            shop.insert(GOOD)
        wait_until(lambda: len(shop.published()) == 50, 60, what="the good events")
        wait_until(lambda: len(read_all(shop.kafka.bootstrap, [shop.letters])) == 50, 60, what="the letters")
        connector.says("dead-lettered")
        assert connector.stop() == 0
    lines = [json.loads(line) for line in connector.log.splitlines()]
    assert sum(line["dead_letters"] for line in lines if line["event"] == "dead-lettered") == 50
    assert [line["dead_letters"] for line in lines if line["event"] == "webhook missed alerts"] == [50]
    for secret in ("hunter2", "T0KEN", "euro"):
        assert secret not in connector.log
