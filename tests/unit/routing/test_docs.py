"""The examples of docs/routing.md load and route as the page says."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.event import OutboxEvent
from tailrace.routing.folder import load_topics
from tailrace.routing.router import Router
from tailrace.routing.view import View

PAGE = (Path(__file__).parents[3] / "docs" / "routing.md").read_text()


def example(heading: str, folder: Path, view: View) -> Router:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    for name, text in re.findall(r"```yaml\n# topics/(\S+)\n(.*?)```", section, re.DOTALL):
        (folder / name).write_text(text)
    return Router(load_topics(folder, view), None, view=view)


def event(type_name: str, aggregate: str, **columns: bytes) -> OutboxEvent:
    return OutboxEvent("e", type_name, aggregate, b"k", None, None, "p", 1, list(columns.items()))


def test_one_outbox_to_many_topics(tmp_path: Path) -> None:
    route = example("One outbox into many streams", tmp_path, View("shop")).route
    assert route(event("PaymentTaken", "payment", tenant=b"eu-1")) == ("shop.payments.eu", "tenant")
    assert route(event("PaymentTaken", "payment", tenant=b"us-1")) == ("shop.payments", None)
    assert route(event("OrderPlaced", "order")) == ("shop.events", None)


def test_several_outboxes_to_one_topic(tmp_path: Path) -> None:
    orders = example("Several outboxes into one stream", tmp_path, View("orders"))
    billing = Router(load_topics(tmp_path, View("billing")), None, view=View("billing"))
    assert orders.route(event("Moved", "customer")) == billing.route(event("Moved", "customer"))
    assert billing.route(event("Sent", "invoice")).topic == "billing.ledger"
    assert not any(tried.matched for tried in orders.explain(event("Sent", "invoice")))


def test_subjects(tmp_path: Path) -> None:
    route = example("Subjects", tmp_path, View("rwa", subject="subject")).route
    assert route(event("Moved", "item", subject=b"rwa.inventory.moved")).topic == "rwa.inventory"
    assert route(event("Moved", "item", subject=b"rwa.warehouse.a.b")).topic == "rwa.inventory"
    assert route(event("Gone", "item", subject=b"rwa.inventory.deleted")).topic == "rwa.audit"
