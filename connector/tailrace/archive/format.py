"""The Parquet format of archived outbox rows: one column per outbox column, with values in text form. Pure.

Any tool that reads Parquet can query a file, and a replay finds in it exactly what the log had delivered. Additional
columns have the prefix `tailrace_`. What is the same for all rows (column types, pipeline, table) is in the metadata of
the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.errors import ArchiveDamaged, LayoutMismatch
from tailrace.event import Column, Columns
from tailrace.positions.base import MALFORMED

if TYPE_CHECKING:
    import pyarrow as pa  # optional: rows are deleted without it, too

FORMAT = 1
METADATA = b"tailrace"
PREFIX = "tailrace_"
PLACE, COMMITTED, CREATED = f"{PREFIX}position", f"{PREFIX}committed_at", f"{PREFIX}created_at"
OURS = (PLACE, COMMITTED, CREATED)

OrderKey = tuple[str | None, ...]


class ArchivedRow(NamedTuple):
    """A row of a file. `position` is the position it was published with; empty if it was not known any more."""

    values: tuple[bytes | None, ...]
    position: str
    committed_ms: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class FileSchema:
    """The schema that all rows of a file share. `binary` names the columns whose values need not be UTF-8."""

    pipeline: str
    table: str
    columns: Columns
    binary: frozenset[str] = frozenset()

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        fields = [pa.field(name, pa.binary() if name in self.binary else pa.string()) for name, _ in self.columns]
        fields += [pa.field(PLACE, pa.string()), pa.field(COMMITTED, _time()), pa.field(CREATED, _time())]
        metadata = {
            "format": FORMAT,
            "pipeline": self.pipeline,
            "table": self.table,
            "columns": [[name, oid] for name, oid in self.columns],
        }
        return pa.schema(fields, metadata={METADATA: json.dumps(metadata).encode()})


def _time() -> pa.DataType:
    import pyarrow as pa

    return pa.timestamp("ms", tz="UTC")


def require_nameable(table: str, names: Sequence[str]) -> None:
    """Refuses an outbox with column names that the format uses itself."""
    taken = [name for name in names if name in OURS]
    if taken:
        raise LayoutMismatch(
            f"{table} has a column {taken[0]}, a name that the archive uses itself", remedy="Rename the column."
        )


def batch_of(schema: pa.Schema, rows: Sequence[ArchivedRow]) -> pa.RecordBatch:
    import pyarrow as pa

    values = list(zip(*(row.values for row in rows), strict=True))
    fields = list(schema)[: -len(OURS)]
    arrays = [pa.array(column, field.type) for column, field in zip(values, fields, strict=True)]
    arrays.append(pa.array([row.position or None for row in rows], pa.string()))
    arrays += [pa.array([row[at] for row in rows], _time()) for at in (2, 3)]
    return pa.record_batch(arrays, schema=schema)


def columns_of(schema: pa.Schema) -> Columns:
    """Returns the columns of the outbox as the log announced them."""
    try:
        fields: dict[str, Any] = json.loads((schema.metadata or {})[METADATA])
        if fields["format"] != FORMAT:
            raise ValueError(f"format {fields['format']} is not supported by this version")
        columns = tuple(Column(str(name), int(oid)) for name, oid in fields["columns"])
        if schema.names != [*(column.name for column in columns), *OURS]:
            raise ValueError("its columns do not match its metadata")
    except MALFORMED as error:
        raise ArchiveDamaged(
            f"a file of the archive was not written by Tailrace: {error}",
            why="Another program or a newer version of Tailrace wrote it.",
            remedy="Read it with that version, or restore the file from a copy.",
        ) from None
    return columns


def rows_of(batch: pa.RecordBatch | pa.Table) -> list[ArchivedRow]:
    import pyarrow as pa

    count = len(batch.schema) - len(OURS)
    values = [batch.column(at).cast(pa.binary()).to_pylist() for at in range(count)]
    places = batch.column(count).to_pylist()
    committed, created = (batch.column(count + at).cast(pa.int64()).to_pylist() for at in (1, 2))
    lines = zip(*values, strict=True) if values else iter([()] * len(places))
    return [
        ArchivedRow(line, position or "", committed_ms, created_ms)
        for line, position, committed_ms, created_ms in zip(lines, places, committed, created, strict=True)
    ]
