"""`tailrace dlq`: lists, shows, redrives, discards and watches dead letters."""

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

from tailrace.cli.dlq import view
from tailrace.cli.dlq.actions import discard, redrive
from tailrace.cli.dlq.context import DlqContext, find_context, ids_first
from tailrace.cli.dlq.parked_keys import parked
from tailrace.cli.dlq.selection import (
    BOOTSTRAP,
    FILE,
    KAFKA_SETTING,
    KEY,
    LETTERS,
    REASON,
    SINCE,
    TYPE,
    UNTIL,
    wanted,
)
from tailrace.cli.output import emit_json, say, table
from tailrace.dlq.dead_letter import DeadLetter, DeadLetterId
from tailrace.dlq.reader import dead_letter_of_tail
from tailrace.dlq.resolutions import Resolution, ResolvedIds, resolutions_topic
from tailrace.errors import ConfigError, Unavailable
from tailrace.kafka.tail import TailedRecord, TopicTail

DEFAULT_LIMIT = 100

app = typer.Typer(
    help="List, show, redrive, discard and watch dead letters: events that could not be published; list parked keys.",
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
    file: Path | None = FILE,
    reason: list[str] = REASON,
    type_name: list[str] = TYPE,
    key: list[str] = KEY,
    since: str = SINCE,
    until: str = UNTIL,
    all_letters: bool = typer.Option(False, "--all", help="Also dead letters that were redriven or discarded."),
    limit: int = typer.Option(DEFAULT_LIMIT, "--limit", min=1, max=10_000, help="Show at most this many, the newest."),
    letters: str = LETTERS,
    bootstrap: str = BOOTSTRAP,
    kafka_setting: list[str] = KAFKA_SETTING,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
) -> None:
    """List the open dead letters: the newest --limit, oldest first.

    Reads the topic as it is now, committed records only, without affecting the pipeline. Times are commit times.

    \b
    Examples:
      tailrace dlq list orders.yaml
      tailrace dlq list orders.yaml --reason schema_validation_failed --type 'Order*' --since 2h
      tailrace dlq list orders.yaml --all --json | jq .letters
      tailrace dlq list --letters order-summary.dead-letters --bootstrap localhost:9092
    """
    choice = wanted(reason, type_name, key, since, until)
    reader = find_context(file, letters, bootstrap, kafka_setting).reader()
    resolved = ResolvedIds() if all_letters else reader.resolved_ids()
    newest: deque[DeadLetter] = deque(maxlen=limit)
    matching = 0
    with closing(reader.dead_letters(reader.ranges(choice.since_ms))) as found:
        for letter in found:
            if choice.matches(letter) and letter not in resolved:
                matching += 1
                newest.append(replace(letter, value=b""))  # payloads would fill memory, and are not shown
    marks = reader.resolutions(newest) if all_letters else {}
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
    file: Path | None = FILE,
    letter_id: str = typer.Argument("", metavar="ID", help="The id of the dead letter, such as 0-42."),
    letters: str = LETTERS,
    bootstrap: str = BOOTSTRAP,
    kafka_setting: list[str] = KAFKA_SETTING,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Show one dead letter in full, and whether it would pass now.

    The event is routed and validated as the pipeline would do it now, but not published. Each invalid field is shown
    with what its schema expects and what the payload contains. For a consumer's dead letter only the consumer knows.

    \b
    Examples:
      tailrace dlq show orders.yaml 0-42
      tailrace dlq show orders.yaml 42 --json | jq .now
      tailrace dlq show 0-42 --letters order-summary.dead-letters --bootstrap localhost:9092
    """
    file, ids = ids_first(file, [letter_id] if letter_id else [], bootstrap)
    if len(ids) != 1:
        raise ConfigError(f"{len(ids) or 'no'} dead letters are given", remedy="Give the id of one, such as 0-42.")
    wanted_id = DeadLetterId.parse(ids[0])
    context = find_context(file, letters, bootstrap, kafka_setting)
    reader = context.reader()
    letter = reader.fetch(wanted_id)
    resolution = reader.resolutions([letter]).get(letter.id)
    now = _now(context, letter)
    if as_json:
        emit_json(view.in_full(letter, resolution, now))
        return
    for name, value in view.facts(letter, resolution):
        say(f"{name:<12} {value}")
    say("\nheaders")
    for name, value in view.headers(letter):
        say(f"  {name}: {value}")
    say(f"\n{'row' if letter.kind == 'row' else 'payload'}\n{view.payload_text(letter)}\n")
    _print_verdict(now, by_consumer=letter.consumer is not None)


app.command("redrive")(redrive)
app.command("discard")(discard)
app.command("parked")(parked)


@app.command()
def watch(
    file: Path | None = FILE,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object a line."),
    letters: str = LETTERS,
    bootstrap: str = BOOTSTRAP,
    kafka_setting: list[str] = KAFKA_SETTING,
) -> None:
    """Follow new dead letters and their resolutions until Ctrl-C.

    \b
    Examples:
      tailrace dlq watch orders.yaml
      tailrace dlq watch orders.yaml --json | jq 'select(.letter) | .letter.explanation'
    """
    options = find_context(file, letters, bootstrap, kafka_setting).kafka
    topic, marks = options.dead_letter_topic, resolutions_topic(options)
    followed = TopicTail(options, {topic, marks}.__contains__, beginning=False)
    say(f"watching {', '.join(followed.topics) or f'for {topic}, which does not exist yet'}", sys.stderr)
    sys.stderr.flush()
    try:
        for seen in followed:
            if seen.value is not None:
                _print_seen(seen, is_resolution=seen.topic == marks, as_json=as_json)
    finally:
        followed.close()


def _now(context: DlqContext, letter: DeadLetter) -> dict[str, Any]:
    try:
        return view.verdict(context.publishing().again, letter)
    except Unavailable as error:
        return view.unknown(error)


def _print_verdict(now: dict[str, Any], *, by_consumer: bool) -> None:
    if now["passes"] and by_consumer:
        say(f"A redrive publishes it to {now['topic']} again; its consumer decides whether it is accepted.")
        return
    if now["passes"]:
        say(f"It would pass now and go to {now['topic']}: tailrace dlq redrive.")
        return
    fails = "It cannot be redriven:" if by_consumer else "It would still fail:"
    say("Whether it would pass now is not known." if now["passes"] is None else fails)
    say(f"  {view.printable(now['explanation'])}")
    if now["remedy"]:
        say(f"  remedy: {view.printable(now['remedy'])}")
    if now.get("fields"):
        say()
        table("Expected by the schema, and found", now["fields"])


def _print_seen(seen: TailedRecord, *, is_resolution: bool, as_json: bool) -> None:
    if is_resolution:
        resolution, name = Resolution.parse(seen.value or b""), (seen.key or b"").decode(errors="backslashreplace")
        shown: dict[str, Any] = {"mark": {"id": name, **resolution.to_json()}}
        text = f"{view.printable(name)} {view.describe_resolution(resolution)}"
    else:
        letter = dead_letter_of_tail(seen)
        shown = {"letter": view.as_json(letter, None)}
        parts = [str(letter.id), letter.reason, letter.type or "-", letter.key_text or "-", letter.explanation]
        text = view.printable(" ".join(parts))
    if as_json:
        emit_json(shown)
        return
    when = datetime.fromtimestamp(seen.timestamp_ms / 1000).astimezone().strftime("%H:%M:%S")
    say(f"{when} {text}")
    sys.stdout.flush()
