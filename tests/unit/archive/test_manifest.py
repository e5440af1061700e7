"""Entries of a manifest: written and read back, numbered without a gap; files without an entry are orphans."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tailrace.archive.manifest import ManifestEntry, TimeRange, entry_name, file_name, numbers, orphans
from tailrace.errors import ArchiveDamaged

ENTRY = ManifestEntry(
    number=7,
    file=file_name(7, "ab12cd34"),
    pipeline="orders",
    table="public.outbox",
    rows=3,
    bytes=1000,
    sha256="00",
    created=TimeRange(10, 20),
    committed=TimeRange(11, 21),
    order_by=("created_at", "id"),
    first=("a", None),
    last=("b", "c"),
    columns=(("id", 2950), ("payload", 3802)),
    written_ms=99,
)


def test_an_entry_is_written_and_read_back() -> None:
    assert ManifestEntry.from_json(json.loads(json.dumps(ENTRY.to_json()))) == ENTRY
    assert ENTRY.name == "manifest/00000007.json"
    assert ENTRY.file == "rows/00000007-ab12cd34.parquet"


@pytest.mark.parametrize("flaw", [{"format": 2}, {"rows": "many"}, {"created": None}, {"columns": [["id"]]}])
def test_text_that_is_no_entry(flaw: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        ManifestEntry.from_json({**ENTRY.to_json(), **flaw})


def test_an_edited_entry_is_noticed() -> None:
    for edited in ({"created": {"first_ms": 0, "last_ms": 20}}, {"columns": [["id", 2950]]}, {"rows": 4}):
        with pytest.raises(ValueError, match="edited"):
            ManifestEntry.from_json({**ENTRY.to_json(), **edited})
    older = {name: value for name, value in ENTRY.to_json().items() if name != "digest"}
    assert ManifestEntry.from_json(older) == ENTRY


def test_numbers_may_begin_anywhere_but_have_no_gap() -> None:
    names = [entry_name(number) for number in (3, 5, 4)]
    assert numbers([*names, "rows/00000009-x.parquet", "manifest/readme.txt"]) == [3, 4, 5]
    assert numbers([]) == []
    with pytest.raises(ArchiveDamaged, match="no entry 4"):
        numbers([entry_name(3), entry_name(5)])


def test_files_without_an_entry_are_orphans() -> None:
    other = replace(ENTRY, file="rows/other.parquet").file
    assert orphans([ENTRY], [ENTRY.file, other, ENTRY.name]) == [other]


@pytest.mark.parametrize(
    ("since", "until", "meets"),
    [(None, None, True), (20, None, True), (21, None, False), (None, 10, False), (None, 11, True), (12, 15, True)],
)
def test_spans_have_both_ends(since: int | None, until: int | None, meets: bool) -> None:
    assert TimeRange(10, 20).meets(since, until) is meets
