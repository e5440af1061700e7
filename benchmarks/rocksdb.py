"""Part of `make bench`: how many blocks a second a projection in RocksDB commits, by the writes of a block.

Each block is one transaction, as a worker commits it: its writes, the undo log, a marker and the next offset, on disk.
In turns with the bare driver, which writes the same keys and values in one synced batch, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from tailrace.projections.core.store import Marker, Partition
from tailrace.projections.rocksdb.store import RocksStore

SIZES = (1, 10, 100, 1000, 10_000)
"""Writes in a block."""
KEYS = 100_000
"""Blocks write to so many keys, so that most of their writes replace a value."""
VALUE = bytes(100)
KEEP_BLOCKS = 2160
SECONDS = 3.0
ROUNDS = 5
FAMILY = "kv"
CHAIN = Partition("chain", 0)
RESULTS = Path(__file__).parent / "results" / "rocksdb.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the time, for a quick run (not saved)")
    parser.add_argument("--folder", type=Path, help="where to write: on a disk, not in memory")
    arguments = parser.parse_args()
    seconds = SECONDS * arguments.scale
    rows = [_measured(arguments.folder, size, seconds) for size in SIZES]
    print(f"{'writes':>8}{'blocks/s':>10}{'writes/s':>12}{'bare':>10}{'ratio':>8}")
    for row in rows:
        print(
            f"{row['writes']:>8,}{row['blocks_per_s']:>10,}{row['writes_per_s']:>12,}"
            f"{row['bare_blocks_per_s']:>10,}{row['ratio']:>8.0%}"
        )
    if arguments.scale == 1:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        result = {"at": at, "value_bytes": len(VALUE), "keep_blocks": KEEP_BLOCKS, "commits": rows}
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def _measured(folder: Path | None, size: int, seconds: float) -> dict[str, Any]:
    print(f"rocksdb: blocks of {size:,} writes", file=sys.stderr, flush=True)
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for measure, found in zip((_store, _bare), rates, strict=True):
            with tempfile.TemporaryDirectory(dir=folder) as name:
                found.append(measure(Path(name) / "db", size, seconds))
    ours, bare = map(median, rates)
    return {
        "writes": size,
        "blocks_per_s": round(ours, 1),
        "writes_per_s": round(ours * size),
        "bare_blocks_per_s": round(bare, 1),
        "ratio": round(ours / bare, 3),
        "rounds": [[round(rate, 1) for rate in found] for found in rates],
    }


def _keys(size: int) -> Iterator[list[bytes]]:
    """Yields the keys of each block."""
    numbers = itertools.count()
    while True:
        yield [(next(numbers) * 7919 % KEYS).to_bytes(32, "big") for _ in range(size)]


def _store(path: Path, size: int, seconds: float) -> float:
    return asyncio.run(_blocks(path, size, seconds))


async def _blocks(path: Path, size: int, seconds: float) -> float:
    store = RocksStore(path, families=[FAMILY], keep_blocks=KEEP_BLOCKS)
    await store.open("benchmark")
    try:
        began, slot, blocks = time.perf_counter(), 0, _keys(size)
        while time.perf_counter() - began < seconds:
            keys = next(blocks)
            async with store.transaction(CHAIN) as transaction:
                await transaction.position()
                await transaction.mark([Marker(f"event-{slot}", None, None, slot)])
                with transaction.effects.block(slot, slot.to_bytes(32, "big")):
                    for key in keys:
                        transaction.effects.put(FAMILY, key, VALUE)
                await transaction.advance(slot + 1)
            slot += 1
        return slot / (time.perf_counter() - began)
    finally:
        await store.close()


def _bare(path: Path, size: int, seconds: float) -> float:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    root = Rdict(str(path), options)
    family = root.create_column_family(FAMILY, Options(raw_mode=True))
    handle, sync = root.get_column_family_handle(FAMILY), WriteOptions()
    sync.sync = True
    began, done, blocks = time.perf_counter(), 0, _keys(size)
    while time.perf_counter() - began < seconds:
        keys = next(blocks)
        batch = WriteBatch(raw_mode=True)
        for key in keys:
            batch.put(key, VALUE, handle)
        root.write(batch, sync)
        done += 1
    rate = done / (time.perf_counter() - began)
    family.close()
    root.close()
    return rate


if __name__ == "__main__":
    main()
