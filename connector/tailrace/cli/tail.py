"""`tailrace tail`: prints published events as consumers see them, one per line."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import typer

from tailrace.cli.dlq.view import payload_as_json, printable
from tailrace.cli.output import emit_json, has_colour, say
from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.kafka.tail import TailedRecord, TopicTail, topic_matcher
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.routing.folder import load_topics
from tailrace.worker.options import kafka_options, own_topics

PIPED_WIDTH = 2000
"""The longest line if the output is not a terminal."""
_RED, _DIM, _RESET = "\x1b[31m", "\x1b[2m", "\x1b[0m"


def tail(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml."),
    type_name: list[str] = typer.Option([], "--type", help="Only events of this type; a shell pattern, repeatable."),
    key: list[str] = typer.Option([], "--key", help="Only events with this key; a shell pattern, repeatable."),
    from_beginning: bool = typer.Option(False, "--from-beginning", help="Also print existing records."),
    limit: int = typer.Option(0, "--limit", min=0, help="Stop after this many events; 0 for no limit."),
    dead_letters: bool = typer.Option(False, "--dead-letters", help="Also dead letters, with their reason."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object a line."),
    no_payload: bool = typer.Option(False, "--no-payload", help="Do not print payloads."),
) -> None:
    """Watch the published events as consumers see them, until --limit or Ctrl-C.

    Follows every topic of the pipeline, including those created later. Reads committed records only, without a
    consumer group, so no consumer is affected. A line is: time, topic[partition]@offset, type, key, id, payload.

    Examples:

        tailrace tail orders.yaml

        tailrace tail orders.yaml --type 'Order*' --key 42 --from-beginning

        tailrace tail orders.yaml --dead-letters --json | jq .dead_letter
    """
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    settings = load_pipeline(file)
    letter_topic, own = settings.kafka.dead_letter_topic, settings.pipeline
    followed = TopicTail(
        kafka_options(settings), _wanted(settings, dead_letters=dead_letters), beginning=from_beginning
    )
    say(f"watching {', '.join(followed.topics) or 'for topics: there are none yet'}", sys.stderr)
    sys.stderr.flush()
    shown = 0
    try:
        for record in followed:
            if record.headers.get(PIPELINE_HEADER, own) != own:
                continue  # of another pipeline that writes to the same topic
            if not (_passes(record.headers.get("type", ""), type_name) and _passes(_text(record.key), key)):
                continue
            if as_json:
                emit_json(_as_json(record, is_letter=record.topic == letter_topic, payload=not no_payload))
            else:
                _print(record, is_letter=record.topic == letter_topic, payload=not no_payload)
            shown += 1
            if shown == limit:
                return
    finally:
        followed.close()


def _wanted(settings: PipelineSettings, *, dead_letters: bool) -> Callable[[str], bool]:
    topics = settings.topics
    named = {spec.topic for spec in load_topics(topics.folder)} if topics.folder else set()
    never = set(own_topics(kafka_options(settings)))
    letter_topics = {settings.kafka.dead_letter_topic} if dead_letters else set()
    return topic_matcher(named | letter_topics, topics.template, never)


def _passes(value: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)


def _print(record: TailedRecord, *, is_letter: bool, payload: bool) -> None:
    when = datetime.fromtimestamp(record.timestamp_ms / 1000).astimezone().strftime("%H:%M:%S.%f")[:-3]
    head, headers = f"{when} {record.topic}[{record.partition}]@{record.offset}", record.headers
    parts = [headers.get("type", "-"), _text(record.key), headers.get("id", "-")]
    if is_letter:
        parts = ["DEAD LETTER", *parts, f"{headers.get('tailrace.reason')}: {headers.get('tailrace.explanation')}"]
    if payload:
        parts.append("(null)" if record.value is None else _text(record.value))
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else PIPED_WIDTH
    line = printable(f"{head} {' '.join(parts)}")
    line = line if len(line) <= width else line[: width - 1] + "…"
    if has_colour(sys.stdout):
        line = f"{_RED}{line}{_RESET}" if is_letter else f"{_DIM}{line[: len(head)]}{_RESET}{line[len(head) :]}"
    say(line)
    sys.stdout.flush()


def _as_json(record: TailedRecord, *, is_letter: bool, payload: bool) -> dict[str, Any]:
    moment = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
    line: dict[str, Any] = {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "type": record.headers.get("type"),
        "key": None if record.key is None else _text(record.key),
        "id": record.headers.get("id"),
        "headers": record.headers,
    }
    if is_letter:
        line["dead_letter"] = {
            part: record.headers.get(f"tailrace.{part}") for part in ("reason", "explanation", "topic")
        }
    if payload:
        line["payload"] = None if record.value is None else payload_as_json(record.value)
    return line


def _text(value: bytes | None) -> str:
    return "-" if value is None else value.decode(errors="backslashreplace")
