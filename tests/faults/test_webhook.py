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
def running_webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Runs a webhook that records its calls; yields its URL and the calls."""
    calls: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            calls.append({**json.loads(body), "authorization": self.headers["Authorization"]})
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", calls
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_new_reason_calls_the_webhook(shop: Shop) -> None:
    with running_webhook() as (url, calls):
        shop.configure(dead_letters={"webhook": {"url": url, "headers": {"Authorization": "Bearer hunter2-xyz"}}})
        connector = shop.start()
        shop.insert(BAD)
        wait_until(lambda: calls, 60, what="the call")
        connector.stop()
    first = calls[0]
    assert (first["pipeline"], first["reason"], first["type"]) == (shop.name, "schema_validation_failed", "OrderPlaced")
    assert (first["dead_letter_topic"], first["authorization"]) == (shop.letters, "Bearer hunter2-xyz")
    assert "hunter2" not in connector.log


def test_a_hanging_webhook_delays_nothing(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/T0KEN"
        headers = {"Authorization": "Bearer hunter2-xyz"}
        shop.configure(dead_letters={"webhook": {"url": url, "timeout": 60, "headers": headers}})
        connector = shop.start()
        for _ in range(50):
            shop.insert(BAD)
            shop.insert(GOOD)
        wait_until(lambda: len(shop.published()) == 50, 60, what="the good events")
        wait_until(lambda: len(read_all(shop.kafka.bootstrap, [shop.letters])) == 50, 60, what="the dead letters")
        connector.says("dead-lettered")
        assert connector.stop() == 0
    lines = [json.loads(line) for line in connector.log.splitlines()]
    assert sum(line["dead_letters"] for line in lines if line["event"] == "dead-lettered") == 50
    assert [line["dead_letters"] for line in lines if line["event"] == "webhook missed alerts"] == [50]
    for secret in ("hunter2", "T0KEN", "euro"):
        assert secret not in connector.log
