"""The rules over a MongoDB server, at their limits."""

from __future__ import annotations

from dataclasses import replace

from tailrace.check.doctor.mongo_rules import CollectionFacts, MongoFacts, check_mongo_facts
from tailrace.check.doctor.registry_findings import RegistryFacts, check_registry
from tailrace.check.result import State

COLLECTION = CollectionFacts("outbox", 20_000, 1 << 20, (("_id",), ("created_at", "_id")))
FACTS = MongoFacts((8, 0, 17), "shop", 3, (COLLECTION,))
USES = {("created_at",): "retention", ("event_id",): "marks"}


def codes(facts: MongoFacts, *, deletes: bool = True) -> list[str]:
    return [each.code for each in check_mongo_facts(facts, {("created_at",): "retention"}, "f.yaml", deletes=deletes)]


def test_mongo() -> None:
    assert codes(FACTS) == []
    assert codes(replace(FACTS, version=(8, 0, 16))) == ["mongo-known-bug"]
    assert codes(replace(FACTS, voters=1)) == ["mongo-single-member"]
    assert codes(replace(FACTS, voters=None)) == []
    assert codes(replace(FACTS, collections=(replace(COLLECTION, bytes=11 << 30),)), deletes=False) == ["outbox-size"]


def test_missing_indexes() -> None:
    (found,) = check_mongo_facts(FACTS, USES, "f.yaml", deletes=True)
    assert (found.code, found.state) == ("mongo-index-missing", State.WARN)
    assert found.fixes[0].text == 'db.getSiblingDB("shop").getCollection("outbox").createIndex({"event_id": 1})'
    unknown = replace(FACTS, collections=(replace(COLLECTION, indexes=None),))
    assert check_mongo_facts(unknown, USES, "f.yaml", deletes=True) == []


def test_the_registry() -> None:
    fine = RegistryFacts("http://r:8081", "BACKWARD", {"A": "BACKWARD"}, {"A": 1, "orders-key": 1}, frozenset({"A"}))
    assert check_registry(fine, ["orders"], "f.yaml") == []
    (none,) = check_registry(replace(fine, level="NONE", levels={"A": "NONE"}), [], "f.yaml")
    assert none.code == "registry-compatibility"
    assert none.fixes[0].text.endswith("http://r:8081/config")
    (single,) = check_registry(replace(fine, levels={"A": "NONE"}), [], "f.yaml")
    assert single.fixes[0].text.endswith("http://r:8081/config/A")
    (key,) = check_registry(replace(fine, versions={"orders-key": 0}), ["orders"], "f.yaml")
    assert (key.code, key.state) == ("registry-key-schema", State.FAIL)
    (empty,) = check_registry(replace(fine, versions={"A": 0}, levels={}), [], "f.yaml")
    assert empty.code == "registry-subject-empty"
    assert "--user USER" in check_registry(replace(fine, level="NONE", needs_login=True), [], "f")[0].fixes[0].text
