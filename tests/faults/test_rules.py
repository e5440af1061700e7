"""Business rules in a running pipeline: rules that reject, raise and hang, and settings that cannot be loaded."""

from __future__ import annotations

import json

import psutil
import pytest

from helpers.command import Tailrace
from helpers.shop import Connector, Shop
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

RULES = """
def check(event):
    note = event.payload.get("note")
    if note == "reject":
        return f"order {event.key} must not be rejected"
    if note == "raise":
        raise LookupError("no such customer")
    while note == "hang":
        pass
    return None
"""


@pytest.fixture
def ruled(shop: Shop) -> Shop:
    (shop.folder / "rules").mkdir()
    (shop.folder / "rules" / "shop_rules_of_a_test.py").write_text(RULES)
    checks = {"OrderPlaced": ["shop_rules_of_a_test:check"]}
    shop.configure(source={"start": "beginning"}, rules={"checks": checks, "folder": "rules", "timeout": 0.5})
    return shop


def add(shop: Shop, note: str, *, kind: str = "OrderPlaced", key: str = "k") -> str:
    payload = {"order": key, "revision": 1, "amount": 1, "currency": "EUR", "note": note}
    return shop.insert(json.dumps(payload), kind=kind, key=key)


def published(shop: Shop) -> list[str]:
    return [header(found, "id") or "" for found in read_all(shop.kafka.bootstrap, [shop.topic])]


def letters(shop: Shop) -> dict[str | None, tuple[str | None, str]]:
    found = read_all(shop.kafka.bootstrap, [shop.letters])
    return {
        header(each, "id"): (header(each, "tailrace.reason"), header(each, "tailrace.explanation") or "")
        for each in found
    }


def rule_process(connector: Connector) -> psutil.Process:
    """Waits for the process in which the rules of a connector run."""
    found: list[psutil.Process] = []

    def started() -> bool:
        children = psutil.Process(connector.process.pid).children()
        found[:] = [each for each in children if "tailrace.rules.worker_main" in each.cmdline()]
        return bool(found)

    wait_until(started, 60, what="the process of the rules")
    return found[0]


def test_rules_that_reject_raise_and_hang(ruled: Shop, tailrace: Tailrace) -> None:
    """Each becomes a dead letter with its reason; everything else flows, in order, also when the process is killed."""
    notes = ("", "reject", "", "raise", "hang", "")
    ids = {note + str(at): add(ruled, note) for at, note in enumerate(notes)}
    unchecked = add(ruled, "hang", kind="OrderChanged")
    connector = ruled.start()
    expected = [ids["0"], ids["2"], ids["5"], unchecked]
    wait_until(lambda: len(published(ruled)) == 4, 60, what="the events that pass")
    assert published(ruled) == expected
    found = letters(ruled)
    assert found[ids["reject1"]][0] == "permanent_failure"
    assert "rejects the event: order k must not be rejected" in found[ids["reject1"]][1]
    assert found[ids["raise3"]][0] == "poison_message"
    assert "raised an error: LookupError: no such customer" in found[ids["raise3"]][1]
    assert found[ids["hang4"]][0] == "processing_timeout"
    assert len(found) == 3

    # The process of the rules is killed, also while it works: nothing is lost.
    rule_process(connector).kill()
    expected.append(add(ruled, ""))
    wait_until(lambda: published(ruled) == expected, 60, what="the event after the kill")

    # The rule is corrected: a redrive passes it, with the present rules.
    rules = ruled.folder / "rules" / "shop_rules_of_a_test.py"
    rules.write_text(RULES.replace('note == "raise"', "False"))
    done = tailrace("dlq", "redrive", ruled.file, "--all-open", "--yes", code=1)
    assert done["summary"]["redriven"] == 1, done
    assert set(published(ruled)) == {*expected, ids["raise3"]}


@pytest.mark.slow
def test_a_connector_that_is_killed_while_a_rule_hangs(ruled: Shop) -> None:
    """The process of the rule ends with it, and the next start publishes everything once, in order."""
    ruled.configure(rules={"timeout": 10})
    first, hanging, last = add(ruled, ""), add(ruled, "hang"), add(ruled, "")
    connector = ruled.start()
    process = rule_process(connector)
    wait_until(lambda: process.cpu_times().user > 0.5, 60, what="the rule to loop")
    connector.kill()
    wait_until(lambda: not process.is_running() or process.status() == "zombie", 30, what="the end of the rule")
    ruled.configure(rules={"timeout": 0.5})
    ruled.start()
    wait_until(lambda: len(published(ruled)) == 2, 60, what="both events")
    assert published(ruled) == [first, last]
    assert list(letters(ruled)) == [hanging]


def test_rules_that_cannot_be_loaded(ruled: Shop, tailrace: Tailrace) -> None:
    """`check` and `run` name the rule; nothing is published."""
    ruled.configure(rules={"checks": {"*": ["shop_rules_of_a_test:absent"]}})
    checks = tailrace("check", ruled.file, "--offline", code=1)["checks"]
    assert ["has no absent" in each["found"] for each in checks if each["name"] == "rules"] == [True]
    ruled.start(wait=False).failed("ConfigError", exit_code=2)
