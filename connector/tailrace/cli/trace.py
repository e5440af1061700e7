"""`tailrace trace`: shows everything that is known of one event."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path
from typing import Any

import typer

from tailrace.cli.dlq.selection import moment
from tailrace.cli.dlq.view import describe_resolution, payload_as_json, printable
from tailrace.cli.output import emit_json, say, table
from tailrace.cli.replay.view import when
from tailrace.config.load import load_pipeline
from tailrace.config.references import UnresolvedError, resolve
from tailrace.errors import ConfigError
from tailrace.trace.passport import Passport, passport_json, text_of
from tailrace.trace.projections import MarkerStore, parse_store
from tailrace.trace.trace import trace as collect
from tailrace.worker.wiring import wire

_app = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?").fullmatch


def trace(
    event_id: str = typer.Argument(..., metavar="ID", help="The id of the event."),
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml."),
    since: str = typer.Option(
        "", "--since", help="Search the topics since then only: 30m, 2h, 3d ago, or an ISO time."
    ),
    projection: list[str] = typer.Option(
        [],
        "--projection",
        metavar="STORE",
        envvar="TAILRACE_PROJECTIONS",
        help="Projections to ask: module:app, postgresql://host/db#schema or mongodb://host/db; repeatable.",
    ),
    payload: bool = typer.Option(False, "--payload", help="Show payloads, and explanations that may quote them."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Show everything that is known of one event: row, position, validation, records, dead letters, projections.

    The topics are read from one hour before the time of the row, or from --since; without a row, from their beginning.
    Records of replays and redrives are shown as such. Nothing is changed, and no consumer is affected.

    Exit codes: 0 found, 1 the event is not known, 2 wrong usage or settings, 3 a server is not available.

    \b
    Examples:
      tailrace trace 7f9c24e8 orders.yaml
      tailrace trace 7f9c24e8 orders.yaml --projection shop.projections:app
      tailrace trace 7f9c24e8 orders.yaml --json | jq .records
    """
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    stores = [store for each in projection for store in _stores(each)]
    wiring = wire(load_pipeline(file))
    found = collect(wiring, event_id, since_ms=moment(since, time.time_ns() // 1_000_000), stores=stores)
    if as_json:
        emit_json(passport_json(found, payload=payload, value_json=payload_as_json))
    else:
        _print(found, payload=payload)


def _stores(text: str) -> list[MarkerStore]:
    """Returns the stores of an app, or the one with this address. A reference such as ${env:VAR} is resolved."""
    if _app(text):
        from tailrace.cli.project.command import load_app

        stores: dict[tuple[str, str], MarkerStore] = {}
        for each in load_app(text).projections:
            if isinstance(found := getattr(each.store, "address", None), tuple):
                stores[found] = MarkerStore(f"{text} {found[1]}".rstrip(), *found)
            else:
                raise ConfigError(
                    f"the markers of {each.name} cannot be read: its store is {type(each.store).__name__}",
                    why="Only the worker of a projection can open a RocksDB folder, or memory.",
                    remedy="Name the stores of other projections by their addresses.",
                )
        return list(stores.values())
    try:
        return [parse_store(resolve(text, os.environ, Path()))]
    except UnresolvedError as error:
        raise ConfigError(f"--projection cannot be resolved: {error.why}", remedy=error.remedy) from None


def _print(found: Passport, *, payload: bool) -> None:
    for name, value in _lines(found, payload=payload):
        say(f"{name:<12} {printable(value)}")
    say()
    table("Records", [_record(each) for each in found.records])
    if payload:
        for each in found.records:
            say(f"\n{each.topic}[{each.partition}]@{each.offset}\n{_payload(each.value)}")
    if found.dead_letters:
        say()
        letters = [
            {
                "dead letter": str(letter.id),
                "reason": letter.reason,
                "written": when(letter.recorded_ms),
                "resolution": describe_resolution(resolution) if resolution else "open",
            }
            for letter, resolution in found.dead_letters
        ]
        table("Dead letters", letters)
    if found.projections:
        say()
        table("Projections", [_projection(each) for each in found.projections])
    for note in found.notes:
        say(f"note: {note}")


def _lines(found: Passport, *, payload: bool) -> list[tuple[str, str]]:
    lines = [("event", found.id), ("pipeline", found.pipeline), ("state", found.state)]
    if row := found.row:
        written = f", transaction {row.transaction}" if row.transaction else ""
        lines.append(("row", f"in {row.source}, created {when(row.created_ms)}{written}"))
        if event := found.event:
            key = text_of(event.key)
            lines.append(
                ("", f"type {event.type}, aggregate {event.aggregate or '-'}, key {'-' if key is None else key}")
            )
        lines += [("marks", ", ".join(f"{name} {value}" for name, value in row.marks.items()))] if row.marks else []
        lines += [("payload", _payload(found.event.payload))] if payload and found.event else []
    passed = {True: ", passed by the pipeline", False: ", not reached by the pipeline", None: ""}[found.is_passed]
    lines.append(("position", f"{found.position or 'not known'}{passed}"))
    lines.append(("pipeline at", str(found.stored) if found.stored else "no stored position"))
    if parking := found.parking:
        key = f"{parking.entity[0]} {text_of(parking.entity[1])}, parked since {when(parking.key.since_ms)}"
        lines.append(
            ("parked", f"first of {key}" if parking.is_first else f"waits behind {parking.key.event} of {key}")
        )
    if today := found.validation:
        if today.passes:
            lines.append(("today", f"valid, goes to {today.topic}"))
        else:
            lines.append(("today", f"{'not known' if today.passes is None else 'rejected'}: {today.reason}"))
            lines += [("", today.explanation)] if payload and today.explanation else []
            lines += [("remedy", today.remedy)] if today.remedy else []
    return lines


def _record(record: Any) -> dict[str, object]:  # noqa: ANN401
    why = {"original": "", "replay": f" {record.replay}", "redrive": f" of {record.redriven}"}[record.kind]
    return {
        "record": f"{record.topic}[{record.partition}]@{record.offset}",
        "time": when(record.timestamp_ms),
        "published as": f"{record.kind}{why}{', edited' if record.edited else ''}",
        "key": printable(text_of(record.key) or "") or None,
    }


def _projection(marker: Any) -> dict[str, object]:  # noqa: ANN401
    state = marker.outcome or ("passed, without a marker" if marker.passed else "not yet")
    return {
        "projection": marker.projection,
        "outcome": state,
        "at": marker.processed_at,
        "store": marker.store,
    }


def _payload(value: bytes | None) -> str:
    return "(null)" if value is None else value.decode(errors="backslashreplace")
