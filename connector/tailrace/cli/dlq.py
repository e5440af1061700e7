"""`tailrace dlq`: the events that could not be published, why, and what is to become of them."""

from __future__ import annotations

import logging
import sys
from collections import deque
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from tailrace.cli import dlq_view as view
from tailrace.cli.dlq_acting import discard, redrive
from tailrace.cli.dlq_choice import FILE, KEY, REASON, SINCE, TYPE, UNTIL, wanted
from tailrace.cli.output import emit_json, say, table
from tailrace.config.load import load_pipeline
from tailrace.config.model import Pipeline as Settings
from tailrace.errors import Unavailable
from tailrace.kafka.letter_box import LetterBox, letter_seen
from tailrace.kafka.letters import Letter, LetterId
from tailrace.kafka.marks import Mark, Marked, marks_topic
from tailrace.kafka.watch import Seen, Watch
from tailrace.worker.assembly import assemble, kafka_options

DEFAULT_LIMIT = 100

app = typer.Typer(
    help="List, show, redrive, discard and watch dead letters: events that could not be published.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _quiet() -> None:
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)


@app.command("list")
def list_letters(
    file: Path = FILE,
    reason: list[str] = REASON,
    type_name: list[str] = TYPE,
    key: list[str] = KEY,
    since: str = SINCE,
    until: str = UNTIL,
    all_letters: bool = typer.Option(False, "--all", help="Also letters that were redriven or discarded."),
    limit: int = typer.Option(DEFAULT_LIMIT, "--limit", min=1, max=10_000, help="Show so many, the newest."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
) -> None:
    """Show the open dead letters: the newest --limit of them, in the order in which they came.

    Reads the topic as it is now, committed letters only, and disturbs nobody. Times are those of the commit.

    \b
    Examples:
      tailrace dlq list orders.yaml
      tailrace dlq list orders.yaml --reason schema_validation_failed --type 'Order*' --since 2h
      tailrace dlq list orders.yaml --all --json | jq .letters
    """
    choice = wanted(reason, type_name, key, since, until)
    box = LetterBox(kafka_options(load_pipeline(file)))
    marked = Marked() if all_letters else box.marked()
    newest: deque[Letter] = deque(maxlen=limit)
    matching = 0
    with closing(box.letters(box.spans(choice.since_ms))) as letters:
        for letter in letters:
            if choice.matches(letter) and letter not in marked:
                matching += 1
                newest.append(replace(letter, value=b""))  # payloads would fill memory, and are not shown
    marks = box.marks(newest) if all_letters else {}
    if as_json:
        shown = [view.as_json(letter, marks.get(letter.id)) for letter in newest]
        emit_json({"letters": shown, "matching": matching})
        return
    rows = [view.row(letter, marks.get(letter.id), with_state=all_letters) for letter in newest]
    table("Dead letters" if all_letters else "Open dead letters", rows)
    if matching > len(newest):
        say(f"The newest {len(newest)} of {matching}; --limit shows more, filters show fewer.")


@app.command()
def show(
    file: Path = FILE,
    letter_id: str = typer.Argument(..., metavar="ID", help="The letter's id, such as 0-42."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Show everything about one letter, and whether it would pass today.

    The event is put through routing and check as they are now, without publishing it: each field that fails is shown
    with what its schema expects and what the payload has there.

    \b
    Examples:
      tailrace dlq show orders.yaml 0-42
      tailrace dlq show orders.yaml 42 --json | jq .now
    """
    wanted_id = LetterId.parse(letter_id)
    settings = load_pipeline(file)
    box = LetterBox(kafka_options(settings))
    letter = box.fetch(wanted_id)
    mark = box.marks([letter]).get(letter.id)
    now = _now(settings, letter)
    if as_json:
        emit_json(view.in_full(letter, mark, now))
        return
    for name, value in view.facts(letter, mark):
        say(f"{name:<12} {value}")
    say("\nheaders")
    for name, value in view.headers(letter):
        say(f"  {name}: {value}")
    say(f"\n{'row' if letter.kind == 'row' else 'payload'}\n{view.payload_text(letter)}\n")
    _print_verdict(now)


app.command("redrive")(redrive)
app.command("discard")(discard)


@app.command()
def watch(
    file: Path = FILE,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object a line."),
) -> None:
    """Follow dead letters as they arrive, and what becomes of them, until Ctrl-C.

    \b
    Examples:
      tailrace dlq watch orders.yaml
      tailrace dlq watch orders.yaml --json | jq 'select(.letter) | .letter.explanation'
    """
    options = kafka_options(load_pipeline(file))
    letters, marks = options.dead_letter_topic, marks_topic(options)
    followed = Watch(options, {letters, marks}.__contains__, beginning=False)
    say(f"watching {', '.join(followed.topics) or f'for {letters}: it is not there yet'}", sys.stderr)
    sys.stderr.flush()
    try:
        for seen in followed:
            if seen.value is not None:
                _print_seen(seen, is_mark=seen.topic == marks, as_json=as_json)
    finally:
        followed.close()


def _now(settings: Settings, letter: Letter) -> dict[str, Any]:
    try:
        return view.verdict(assemble(settings).line(), letter)
    except Unavailable as error:
        return view.untold(error)


def _print_verdict(now: dict[str, Any]) -> None:
    if now["passes"]:
        say(f"Today it would pass, and go to {now['topic']}: tailrace dlq redrive.")
        return
    say("Whether it would pass today cannot be told." if now["passes"] is None else "Today it would still fail:")
    say(f"  {view.printable(now['explanation'])}")
    if now["remedy"]:
        say(f"  remedy: {view.printable(now['remedy'])}")
    if now.get("fields"):
        say()
        table("What the schema wants, and what came", now["fields"])


def _print_seen(seen: Seen, *, is_mark: bool, as_json: bool) -> None:
    if is_mark:
        mark, name = Mark.parse(seen.value or b""), (seen.key or b"").decode(errors="backslashreplace")
        told: dict[str, Any] = {"mark": {"id": name, **mark.to_json()}}
        text = f"{view.printable(name)} {view.told_mark(mark)}"
    else:
        letter = letter_seen(seen)
        told = {"letter": view.as_json(letter, None)}
        parts = [str(letter.id), letter.reason, letter.type or "-", letter.key_text or "-", letter.explanation]
        text = view.printable(" ".join(parts))
    if as_json:
        emit_json(told)
        return
    when = datetime.fromtimestamp(seen.timestamp_ms / 1000).astimezone().strftime("%H:%M:%S")
    say(f"{when} {text}")
    sys.stdout.flush()
