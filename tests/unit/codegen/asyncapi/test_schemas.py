"""Schemas of an AsyncAPI document have valid names, and are draft 7 if they mean the same in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fetched import suite_groups
from tailrace.codegen.asyncapi.schemas import DRAFT_7, Schemas, legal_names, means_the_same_in_draft_7
from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.folder import load_folder
from tailrace.schemas.json_schema import DRAFTS, CompiledJsonSchema

FOLDERS = dict(zip(DRAFTS, ["draft2020-12", "draft2019-09", "draft7", "draft6", "draft4"], strict=True))


def compile_schema(schema: Any) -> CompiledJsonSchema | None:
    try:
        return CompiledJsonSchema.compile("T", Version(1), schema, "schemas/T/1.json")
    except SchemaError:
        return None


@pytest.mark.timeout(900)  # The first run fetches the suite.
@pytest.mark.parametrize("draft", [draft for draft in DRAFTS if draft != DRAFT_7])
def test_schemas_converted_to_draft_7_pass_the_official_suite(draft: str) -> None:
    same = 0
    for group in suite_groups(FOLDERS[draft]):
        schema = {"$schema": draft, **group["schema"]} if isinstance(group["schema"], dict) else group["schema"]
        compiled = compile_schema(schema)
        # Draft 7 does not define `uuid` and `duration`, but its validators know them.
        if compiled is None or not means_the_same_in_draft_7(schema) or "'format'" in str(schema):
            continue
        schemas = Schemas([compiled]).components()
        [component] = schemas.values()
        assert component["schemaFormat"] == "application/schema+json;version=draft-07"
        as_7 = compile_schema(
            {"$schema": DRAFT_7, "allOf": [{"$ref": "#/components/schemas/T.v1/schema"}]} | here(schemas)
        )
        assert as_7 is not None, schema
        for case in group["tests"]:
            assert as_7.is_valid(case["data"]) == compiled.is_valid(case["data"]), (schema, case)
        same += 1
    assert same > 100


def here(schemas: dict[str, Any]) -> dict[str, Any]:
    return {"components": {"schemas": schemas}}


@pytest.mark.parametrize(
    ("draft", "schema"),
    [
        (DRAFTS[0], {"items": {"prefixItems": [{}]}}),
        (DRAFTS[0], {"properties": {"a": {"$ref": "#", "minProperties": 1}}}),
        (DRAFTS[1], {"dependentRequired": {"a": ["b"]}}),
        (DRAFTS[3], {"if": {}}),
        (DRAFTS[4], {"not": {"const": 1}}),
    ],
)
def test_schemas_with_another_meaning_in_draft_7_keep_their_draft(draft: str, schema: dict[str, Any]) -> None:
    compiled = compile_schema({"$schema": draft} | schema)
    assert compiled is not None
    component = Schemas([compiled]).components()["T.v1"]
    assert component["schemaFormat"].removeprefix("application/schema+json;version=") in draft
    assert component["schema"]["$schema"] == draft


def test_a_property_named_like_a_keyword_is_not_a_keyword() -> None:
    assert means_the_same_in_draft_7({"properties": {"prefixItems": {"type": "string"}}, "enum": [{"$anchor": "a"}]})
    assert means_the_same_in_draft_7(True)


def test_schemas_that_refer_to_each_other_have_the_same_format(tmp_path: Path) -> None:
    files = {"A": '{"$ref": "../B/1.json"}', "B": '{"$ref": "../C/1.json"}', "C": '{"minContains": 1}', "D": "{}"}
    for name, text in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.json").write_text(text)
    components = Schemas(list(load_folder(tmp_path))).components()
    formats = {name: component["schemaFormat"].partition("=")[2] for name, component in components.items()}
    assert formats == {"A.v1": "2020-12", "B.v1": "2020-12", "C.v1": "2020-12", "D.v1": "draft-07"}


@given(st.lists(st.text(max_size=4) | st.sampled_from(["a/b", "a b", "a_b", "a_b-2", "é", "_"]), max_size=8))
def test_names_are_valid_and_different(wanted: list[str]) -> None:
    names = legal_names(dict(enumerate(wanted)))
    assert list(names) == list(range(len(wanted)))
    assert len(set(names.values())) == len(wanted)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names.values())
