"""What handlers read and write: their own writes, prefixes, and transactions of other partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.rocks import contents, effects_of, opened
from helpers.store_scenarios import Boom, in_loop
from tailrace.errors import ConfigError
from tailrace.projections.core.store import Partition, ShareableStore
from tailrace.projections.rocksdb.buffer import WriteBuffer
from tailrace.projections.rocksdb.database import RocksDatabase, TransactionConflict
from tailrace.projections.rocksdb.store import RocksStore

ONE, TWO = Partition("orders", 0), Partition("orders", 1)
KEYS = st.binary(max_size=3)
WRITES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=2)), max_size=8)


@in_loop
async def test_own_writes_are_seen(tmp_path: Path) -> None:
    async with opened(tmp_path / "db") as store:
        async with effects_of(store) as effects:
            effects.put("a", b"", b"empty key")
            effects.put("a", b"k", b"")
            assert (effects.get("a", b""), effects.get("a", b"k"), effects.get("b", b"k")) == (b"empty key", b"", None)
        async with effects_of(store) as effects:
            effects.delete("a", b"k")
            effects.delete("a", b"never there")
            assert effects.get("a", b"k") is None
    assert contents(tmp_path / "db") == {"a": {b"": b"empty key"}, "b": {}}


def test_iteration_is_that_of_a_sorted_dict(tmp_path: Path) -> None:
    database = RocksDatabase.join(tmp_path, ["a"])

    @settings(deadline=None, max_examples=150)
    @given(WRITES, WRITES, KEYS, KEYS)
    def check(committed: Any, own: Any, prefix: bytes, start: bytes) -> None:
        expected: dict[bytes, bytes] = {}
        first, second = WriteBuffer(database), WriteBuffer(database)
        for key in [key for key, _ in database.items("a", b"")]:
            first.delete("a", key)
        for buffer, writes in ((first, committed), (second, own)):
            for key, value in writes:
                if value is None:
                    buffer.delete("a", key)
                    expected.pop(key, None)
                else:
                    buffer.put("a", key, value)
                    expected[key] = value
            if buffer is first:
                first.commit()
                first.end()
        found = list(second.items("a", prefix, start))
        second.end()
        assert found == [item for item in sorted(expected.items()) if item[0].startswith(prefix) and item[0] >= start]

    check()
    database.leave()


@in_loop
async def test_two_partitions_that_count_in_one_key(tmp_path: Path) -> None:
    """The second one has read an old value: it is retried, and nothing is lost."""
    async with opened(tmp_path) as store:
        with pytest.raises(TransactionConflict) as caught:  # noqa: PT012
            async with effects_of(store, ONE) as late:
                assert late.get("a", b"count") is None
                async with effects_of(store, TWO) as effects:
                    effects.put("a", b"count", b"1")
                late.put("a", b"count", b"1")
        assert store.is_transient(caught.value)
        async with effects_of(store, ONE) as effects:
            assert effects.get("a", b"count") == b"1"


@in_loop
async def test_a_key_that_appears_in_a_range_that_was_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for key, conflicts in ((b"x1", True), (b"y1", False)):
            try:
                async with effects_of(store, ONE) as late:
                    assert list(late.items("a", b"x")) == []
                    async with effects_of(store, TWO) as effects:
                        effects.put("a", key, b"")
                        effects.put("b", b"x1", b"")
                    late.put("b", b"sum", b"0")
            except TransactionConflict:
                assert conflicts
            else:
                assert not conflicts
            async with effects_of(store, ONE) as effects:
                effects.delete("a", b"x1")


@in_loop
async def test_an_error_after_half_of_another_transaction_is_a_conflict(tmp_path: Path) -> None:
    """The event would otherwise be dead-lettered for data that never existed together."""
    async with opened(tmp_path) as store:
        with pytest.raises(TransactionConflict):  # noqa: PT012
            async with effects_of(store, ONE) as late:
                assert late.get("a", b"total") is None
                async with effects_of(store, TWO) as effects:
                    effects.put("a", b"total", b"1")
                    effects.put("a", b"item", b"1")
                assert late.get("a", b"item") == b"1"
                raise Boom
        with pytest.raises(Boom):  # noqa: PT012
            async with effects_of(store, ONE) as effects:
                assert effects.get("a", b"item") == b"1"
                raise Boom


@in_loop
async def test_reading_beside_transactions(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        async with effects_of(store) as effects:
            effects.put("a", b"k", b"1")
            with store.reading() as reader:
                assert reader.get("a", b"k") is None
        with store.reading() as reader:
            assert list(reader.items("a")) == [(b"k", b"1")]
        with pytest.raises(RuntimeError, match="has ended"):
            reader.get("a", b"k")


@in_loop
async def test_two_projections_are_declared_with_one_store(tmp_path: Path) -> None:
    async with opened(tmp_path, "one") as store:
        assert isinstance(store, ShareableStore)
        other = store.another()
        await other.open("two")
        async with effects_of(other) as effects:
            effects.put("a", b"k", b"1")
        await other.close()
        with store.reading() as reader:
            assert reader.get("a", b"k") == b"1"


@in_loop
async def test_wrong_arguments(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, effects_of(store) as effects:
        with pytest.raises(ConfigError, match="no column family c"):
            effects.get("c", b"")
        with pytest.raises(ConfigError):
            effects.put("tailrace", b"", b"")
        with pytest.raises(TypeError, match="give bytes"):
            effects.put("a", "text", b"")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="give bytes"):
            effects.put("a", b"", 1)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no undo log"):
            effects.rollback_to(1)


@pytest.mark.parametrize(
    "options",
    [{"families": "abc"}, {"families": ["tailrace"]}, {"families": ["default"]}, {"families": [""]},
     {"families": ["a"], "undo_family": "a"}, {"families": ["a"], "keep_blocks": 0}],
)  # fmt: skip
def test_wrong_settings(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RocksStore("db", **options)
