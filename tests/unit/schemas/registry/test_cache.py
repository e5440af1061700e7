"""The parts of the registry cache that need no registry: references and cached answers."""

from __future__ import annotations

import pytest

from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import Reference, RegistryIds
from tailrace.schemas.registry.cache import MAX_DEPTH, MAX_REFERENCES, MAX_REMEMBERED, Remembered, with_references
from tailrace.schemas.registry.client import FetchedSchema


class FakeSchemas:
    """Schemas by subject, each of version 1. Records which ones were fetched."""

    def __init__(self, references: dict[str, list[str]]) -> None:
        self.references = references
        self.fetched: list[str] = []

    def fetch(self, subject: str, version: int) -> FetchedSchema | None:
        self.fetched.append(subject)
        if subject not in self.references:
            return None
        references = tuple(Reference(f"{name}.json", name, Version(1)) for name in self.references[subject])
        return FetchedSchema(
            subject, version, "json", {"title": subject}, references, RegistryIds(1), f"registry/{subject}"
        )

    def resolve(self, subject: str) -> FetchedSchema:
        schema = self.fetch(subject, 1)
        assert schema is not None
        return with_references(schema, self.fetch)


def test_documents_are_returned_by_name_the_innermost_first() -> None:
    resolved = FakeSchemas({"order": ["line", "money"], "line": ["money"], "money": []}).resolve("order")
    assert list(resolved.named) == ["money.json", "line.json"]
    assert resolved.named["line.json"] == {"title": "line"}


def test_a_schema_that_two_others_refer_to_is_fetched_once() -> None:
    schemas = FakeSchemas({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []})
    schemas.resolve("a")
    assert sorted(schemas.fetched) == ["a", "b", "c", "d"]


def test_many_paths_to_the_same_schemas_cause_no_more_requests() -> None:
    """There are six paths at each of 15 levels: following each of them would practically never end."""
    layers = [[f"{level}-{way}" for way in range(6)] for level in range(MAX_DEPTH - 1)]
    references: dict[str, list[str]] = {"top": layers[0]}
    for upper, lower in zip(layers, [*layers[1:], []], strict=True):
        references.update(dict.fromkeys(upper, lower))
    schemas = FakeSchemas(references)
    assert len(schemas.resolve("top").named) == 6 * (MAX_DEPTH - 1)
    assert len(schemas.fetched) == 6 * (MAX_DEPTH - 1) + 1


@pytest.mark.parametrize("cycle", [{"a": ["a"]}, {"a": ["b"], "b": ["a"]}, {"a": ["b"], "b": ["c"], "c": ["b"]}])
def test_circular_references_are_refused(cycle: dict[str, list[str]]) -> None:
    with pytest.raises(SchemaError, match="refers to itself"):
        FakeSchemas(cycle).resolve("a")


def test_the_depth_of_references_is_bounded() -> None:
    chain = {str(n): [str(n + 1)] for n in range(MAX_DEPTH)} | {str(MAX_DEPTH): []}
    assert len(FakeSchemas(chain).resolve("0").named) == MAX_DEPTH
    with pytest.raises(SchemaError, match=f"more than {MAX_DEPTH} deep"):
        FakeSchemas(chain | {str(MAX_DEPTH): ["last"], "last": []}).resolve("0")


def test_the_number_of_references_is_bounded() -> None:
    names = [f"n{number}" for number in range(MAX_REFERENCES)]
    wide: dict[str, list[str]] = {"a": names, **{name: [] for name in names}}
    assert len(FakeSchemas(wide).resolve("a").named) == MAX_REFERENCES
    schemas = FakeSchemas(wide | {"a": [*names, "more"], "more": []})
    with pytest.raises(SchemaError, match=f"more than {MAX_REFERENCES}"):
        schemas.resolve("a")
    assert "more" not in schemas.fetched


def test_a_missing_reference_is_named() -> None:
    with pytest.raises(SchemaError, match="version 1 of gone is not registered"):
        FakeSchemas({"a": ["gone"]}).resolve("a")


def test_one_name_for_two_schemas_is_refused() -> None:
    schemas = FakeSchemas({"b": [], "c": []})
    references = (Reference("same", "b", Version(1)), Reference("same", "c", Version(1)))
    schema = FetchedSchema("a", 1, "json", {}, references, RegistryIds(1), "registry/a")
    with pytest.raises(SchemaError, match="same names two"):
        with_references(schema, schemas.fetch)


def test_an_answer_is_cached_until_it_expires() -> None:
    now = 100.0
    memory: Remembered[str, int] = Remembered(30.0, lambda: now)
    memory.put("a", 1)
    now = 129.9
    assert memory.get("a") == 1
    now = 130.0
    assert memory.get("a") is None


def test_the_oldest_answers_are_evicted() -> None:
    memory: Remembered[int, bool] = Remembered(30.0, lambda: 0.0)
    for number in range(MAX_REMEMBERED):
        memory.put(number, True)
    memory.put(0, True)  # now the newest
    memory.put(MAX_REMEMBERED, True)
    assert len(memory) == MAX_REMEMBERED
    assert (memory.get(0), memory.get(1), memory.get(2)) == (True, None, True)
