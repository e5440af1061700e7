"""`tailrace dlq parked` and `discard --parked-key`: parked keys, including those whose dead letter is gone."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from pathlib import Path

import typer

from tailrace.cli.dlq.context import DlqContext, find_context
from tailrace.cli.dlq.parked_dead_letters import ANSWER_SECONDS, LOOK_SECONDS
from tailrace.cli.dlq.view import local_time, printable, utc
from tailrace.cli.output import emit_json, say, table
from tailrace.dlq import requests
from tailrace.dlq.dead_letter import DeadLetter
from tailrace.dlq.parked_keys import Entity, GiveUpRequest, ParkedKey
from tailrace.errors import ConfigError

GONE = "gone"


def parked(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
) -> None:
    """List the parked keys: since when, how many events wait, and the dead letter they wait behind.

    A key whose dead letter is `gone` can no longer be redriven: `dlq discard --parked-key` discards its first event and
    releases the others. Reads the topics as they are now, without affecting the pipeline.

    \b
    Examples:
      tailrace dlq parked orders.yaml
      tailrace dlq parked orders.yaml --json | jq '.keys[] | select(.letter == null)'
    """
    kafka = find_context(file, "", "", []).kafka
    parking_state = requests.parking_state(kafka)
    waiting, letters = requests.waiting_counts(kafka, parking_state), requests.first_letters(kafka, parking_state)
    keys = sorted(parking_state.keys.items(), key=lambda each: each[1].since_ms)
    if as_json:
        emit_json(
            {
                "keys": [
                    {
                        "aggregate": entity[0],
                        "key": _text(entity),
                        "since": utc(state.since_ms),
                        "position": state.place,
                        "event_id": state.event or None,
                        "waiting": waiting[entity],
                        "releasing": state.releasing,
                        "letter": str(letter.id) if (letter := letters.get(entity)) else None,
                        "requested": entity in parking_state.gives_up,
                    }
                    for entity, state in keys
                ]
            }
        )
        return
    rows = [
        {
            "aggregate": printable(entity[0]),
            "key": printable(_text(entity)),
            "since": local_time(state.since_ms),
            "position": state.place,
            "event": printable(state.event),
            "waiting": waiting[entity],
            "letter": "is being released" if state.releasing else letter.id if (letter := letters[entity]) else GONE,
        }
        for entity, state in keys
    ]
    table("Parked keys", rows)
    if any(letter is None for letter in letters.values()):
        say("Release a key whose dead letter is gone: tailrace dlq discard FILE --parked-key KEY --why …")


def first_letters_of(
    context: DlqContext, keys: list[str], aggregate: str
) -> tuple[list[DeadLetter], dict[Entity, ParkedKey]]:
    """The dead letters of some parked keys, and the keys whose dead letter is gone."""
    if context.settings is None:
        raise ConfigError("only pipelines park keys", remedy="Give the settings file of a pipeline.")
    parking_state = requests.parking_state(context.kafka, final=True)
    chosen: dict[Entity, ParkedKey] = {}
    for key in dict.fromkeys(keys):
        found = [entity for entity in parking_state.keys if _text(entity) == key and aggregate in ("", entity[0])]
        if not found:
            raise ConfigError(f"the key {key!r} is not parked", remedy="See `tailrace dlq parked`. Nothing was done.")
        if len(found) > 1:
            raise ConfigError(
                f"the key {key!r} is parked for several aggregates: {', '.join(sorted(each[0] for each in found))}",
                remedy="Name one with --aggregate. Nothing was done.",
            )
        chosen[found[0]] = parking_state.keys[found[0]]
    letters = requests.first_letters(context.kafka, parking_state)
    there = [letter for entity in chosen if (letter := letters.get(entity)) is not None]
    # A key that is being released has no dead letter: wait for it.
    return there, {entity: state for entity, state in chosen.items() if letters.get(entity) is None}


def give_up(context: DlqContext, keys: dict[Entity, ParkedKey], by: str, why: str, *, as_json: bool) -> int:
    """Asks the pipeline to release keys whose dead letter is gone, waits for it, and reports each result."""
    asked = [GiveUpRequest(entity, state.place, by, why) for entity, state in keys.items() if not state.releasing]
    requests.ask(context.kafka, asked)
    deadline, pause = time.monotonic() + ANSWER_SECONDS, threading.Event()
    left, counts = dict(keys), Counter[str]()
    while left and time.monotonic() < deadline:
        parking_state = requests.parking_state(context.kafka, final=True)
        for entity in list(left):
            state = parking_state.keys.get(entity)
            is_there = state is not None and (state.releasing or state.place == left[entity].place)
            if is_there or entity in parking_state.gives_up:
                continue
            del left[entity]
            deadline = time.monotonic() + ANSWER_SECONDS  # it makes progress
            behind = (
                "; an event that waited failed and is the first of the key now"
                if state
                else ", with all events that waited"
            )
            _report(entity, "released", behind, counts, as_json=as_json)
        if left:
            pause.wait(LOOK_SECONDS)
    for entity in left:
        _report(entity, "requested", ": the pipeline does it when it runs", counts, as_json=as_json)
    if as_json:
        emit_json({"summary": dict(counts)})
    else:
        say(", ".join(f"{number} {name}" for name, number in counts.items()))
    sys.stdout.flush()
    return 0


def _report(entity: Entity, outcome: str, text: str, counts: Counter[str], *, as_json: bool) -> None:
    counts[outcome] += 1
    if as_json:
        emit_json({"aggregate": entity[0], "key": _text(entity), "letter": None, "outcome": outcome})
    else:
        say(printable(f"{entity[0]} {_text(entity)} {outcome}{text}"))


def _text(entity: Entity) -> str:
    return entity[1].decode(errors="backslashreplace")
