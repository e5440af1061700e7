"""`tailrace dlq parked`, and `discard --parked-key`: parked keys by name, also where the letter in front is gone."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from pathlib import Path

import typer

from tailrace.cli.dlq.context import DlqContext, find_context
from tailrace.cli.dlq.parked_letters import ANSWER_SECONDS, LOOK_SECONDS
from tailrace.cli.dlq.view import local_time, printable, utc
from tailrace.cli.output import emit_json, say, table
from tailrace.dlq import requests as park_requests
from tailrace.dlq.dead_letter import DeadLetter
from tailrace.dlq.parked_keys import Entity, GiveUpRequest, ParkedKey
from tailrace.errors import ConfigError

GONE = "gone"


def parked(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
) -> None:
    """Show the parked keys: since when, how many events wait behind each, and the letter in front.

    A key whose letter is `gone` can no longer be redriven: `dlq discard --parked-key` gives its first event up, and
    releases the others. Reads the topics as they are now, and disturbs nobody.

    \b
    Examples:
      tailrace dlq parked orders.yaml
      tailrace dlq parked orders.yaml --json | jq '.keys[] | select(.letter == null)'
    """
    kafka = find_context(file, "", "", []).kafka
    board = park_requests.board(kafka)
    waiting, letters = park_requests.waiting_counts(kafka, board), park_requests.fronts(kafka, board)
    keys = sorted(board.keys.items(), key=lambda each: each[1].since_ms)
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
                        "requested": entity in board.gives_up,
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
        say("Release a key whose letter is gone: tailrace dlq discard FILE --parked-key KEY --why …")


def fronts_of(office: DlqContext, keys: list[str], aggregate: str) -> tuple[list[DeadLetter], dict[Entity, ParkedKey]]:
    """What is in front of some parked keys: letters, and the keys whose letter is gone."""
    if office.settings is None:
        raise ConfigError("only pipelines park keys", remedy="Leave --letters and --bootstrap out, name the pipeline.")
    board = park_requests.board(office.kafka, final=True)
    chosen: dict[Entity, ParkedKey] = {}
    for key in dict.fromkeys(keys):
        found = [entity for entity in board.keys if _text(entity) == key and aggregate in ("", entity[0])]
        if not found:
            raise ConfigError(f"the key {key!r} is not parked", remedy="See `tailrace dlq parked`. Nothing was done.")
        if len(found) > 1:
            raise ConfigError(
                f"the key {key!r} is parked for several aggregates: {', '.join(sorted(each[0] for each in found))}",
                remedy="Name one with --aggregate. Nothing was done.",
            )
        chosen[found[0]] = board.keys[found[0]]
    letters = park_requests.fronts(office.kafka, board)
    there = [letter for entity in chosen if (letter := letters.get(entity)) is not None]
    # One that is being released has nobody in front: it is waited for.
    return there, {entity: state for entity, state in chosen.items() if letters.get(entity) is None}


def give_up(office: DlqContext, keys: dict[Entity, ParkedKey], by: str, why: str, *, as_json: bool) -> int:
    """Asks the pipeline to release keys whose letter is gone, waits for it, and tells what became of each."""
    requests = [GiveUpRequest(entity, state.place, by, why) for entity, state in keys.items() if not state.releasing]
    park_requests.ask(office.kafka, requests)
    deadline, pause = time.monotonic() + ANSWER_SECONDS, threading.Event()
    left, counts = dict(keys), Counter[str]()
    while left and time.monotonic() < deadline:
        board = park_requests.board(office.kafka, final=True)
        for entity in list(left):
            state = board.keys.get(entity)
            is_there = state is not None and (state.releasing or state.place == left[entity].place)
            if is_there or entity in board.gives_up:
                continue
            del left[entity]
            deadline = time.monotonic() + ANSWER_SECONDS  # it is at work
            behind = "; one that waited is in front of the key now" if state else ", and all that waited behind it"
            _tell(entity, "released", behind, counts, as_json=as_json)
        if left:
            pause.wait(LOOK_SECONDS)
    for entity in left:
        _tell(entity, "requested", ": the pipeline does it when it runs", counts, as_json=as_json)
    if as_json:
        emit_json({"summary": dict(counts)})
    else:
        say(", ".join(f"{number} {name}" for name, number in counts.items()))
    sys.stdout.flush()
    return 0


def _tell(entity: Entity, outcome: str, text: str, counts: Counter[str], *, as_json: bool) -> None:
    counts[outcome] += 1
    if as_json:
        emit_json({"aggregate": entity[0], "key": _text(entity), "letter": None, "outcome": outcome})
    else:
        say(printable(f"{entity[0]} {_text(entity)} {outcome}{text}"))


def _text(entity: Entity) -> str:
    return entity[1].decode(errors="backslashreplace")
