"""`tailrace outbox guard`: prints a trigger that refuses rows which the connector would dead-letter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import typer

from tailrace.cli.output import say
from tailrace.cli.starter_files import TABLES
from tailrace.codegen.guard.shape import Shape, shapes_of
from tailrace.codegen.guard.sql import Guard, PayloadType
from tailrace.config.load import load_pipeline
from tailrace.config.model import LimitSettings, PipelineSettings
from tailrace.errors import ConfigError
from tailrace.outbox.layouts import ColumnMap
from tailrace.outbox.specs import LAYOUTS, layout_map
from tailrace.schemas.folder import load_folder
from tailrace.worker.options import column_map


def guard(
    file: Path | None = typer.Argument(
        None, metavar="[FILE]", help="Pipeline settings file. It names table, columns, schemas and limit."
    ),
    layout: str = typer.Option("debezium", "--layout", help="Without FILE: debezium, document, streams or storage."),
    table: str | None = typer.Option(
        None, "--table", help="Without FILE: the outbox table. Default: public.outbox, or the layout's usual name."
    ),
    schemas: Path | None = typer.Option(
        None, "--schemas", help="Without FILE: the schema folder. Without it, payloads are only measured."
    ),
    max_bytes: int = typer.Option(
        LimitSettings().payload_bytes,
        "--max-bytes",
        min=1,
        help="Without FILE: the largest payload, limits.payload_bytes.",
    ),
    payload_type: str = typer.Option(
        "jsonb", "--payload-type", help="jsonb; or json, for a payload column of type json, text or varchar."
    ),
    require_aggregate: bool = typer.Option(
        False, "--require-aggregate", help="Also refuse rows without an aggregate, which some routing rules need."
    ),
    drop: bool = typer.Option(False, "--drop", help="Print the SQL that removes the guard."),
) -> None:
    """Print SQL for a trigger that refuses bad outbox rows, for services that insert with SQL of their own.

    The INSERT fails, with the reason, if the connector would dead-letter the row because of its shape: no type, no
    schema for its type, a payload that is too large, that lacks a required field, or has a field of a wrong JSON type.
    The guard is never stricter than the connector, and checks only the top level of payloads.

    \b
    Examples:
      tailrace outbox guard orders.yaml | psql
      tailrace outbox guard --layout debezium --table public.outbox --schemas schemas > guard.sql
      tailrace outbox guard --table public.outbox --drop | psql
    """
    if payload_type not in get_args(PayloadType):
        raise ConfigError(f"--payload-type is {payload_type!r}", remedy="Use jsonb or json.")
    if file is not None:
        made = _guard_of(load_pipeline(file))
    else:
        columns = _columns(layout)
        shapes = _shapes(schemas, columns)
        made = Guard(table or TABLES[layout], columns, max_bytes, shapes=shapes, unknown_pass=schemas is None)
    made = replace(made, payload_type=cast(PayloadType, payload_type), require_aggregate=require_aggregate)
    say((made.drop() if drop else made.create()).rstrip("\n"))


def _guard_of(settings: PipelineSettings) -> Guard:
    if settings.source.table is None:
        raise ConfigError(
            "a guard is a trigger of a table in Postgres, and the pipeline reads from "
            + ("messages in the log" if settings.source.messages else "MongoDB"),
            remedy="Have the service add events with tailrace.outbox, which validates them.",
        )
    columns, schemas = column_map(settings), settings.schemas
    passes = schemas is None or schemas.folder is None or schemas.unknown == "pass"
    # An event whose version has no schema passes unvalidated as well, and the guard does not read versions.
    unvalidated = passes and columns.version is not None
    return Guard(
        settings.source.table,
        columns,
        settings.limits.payload_bytes,
        shapes={} if unvalidated else _shapes(schemas.folder if schemas else None, columns),
        unknown_pass=passes,
    )


def _shapes(folder: Path | None, columns: ColumnMap) -> dict[str, Shape]:
    return shapes_of(load_folder(folder), latest=columns.version is None) if folder else {}


def _columns(layout: str) -> ColumnMap:
    if layout not in LAYOUTS:
        raise ConfigError(f"there is no layout {layout!r}", remedy=f"Choose one of {', '.join(LAYOUTS)}.")
    return layout_map(layout, "postgres")
