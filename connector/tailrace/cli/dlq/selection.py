"""Selects dead letters by id or by filters. The options of all `tailrace dlq` commands."""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import typer

from tailrace.dlq.dead_letter import DeadLetter, DeadLetterFilter, DeadLetterId
from tailrace.dlq.reader import DeadLetterReader
from tailrace.dlq.resolutions import ResolvedIds
from tailrace.errors import ConfigError, Reason
from tailrace.kafka.reader import Ranges

FILE: Path | None = typer.Argument(None, metavar="FILE", help="The pipeline's settings; not with --bootstrap.")
LETTERS: str = typer.Option("", "--letters", metavar="TOPIC", help="Use the dead letters of consumers on this topic.")
BOOTSTRAP: str = typer.Option(
    "", "--bootstrap", metavar="HOST:PORT", help="Kafka brokers, for --letters without a settings file."
)
KAFKA_SETTING: list[str] = typer.Option(
    [], "--kafka-setting", metavar="NAME=VALUE", help="A librdkafka setting, with --bootstrap; repeatable."
)
IDS: list[str] = typer.Argument(None, metavar="ID", help="Ids of dead letters, such as 0-42.")
REASON: list[str] = typer.Option([], "--reason", help="Only dead letters with this reason; repeatable.")
TYPE: list[str] = typer.Option([], "--type", help="Only events of this type; a shell pattern, repeatable.")
KEY: list[str] = typer.Option([], "--key", help="Only events with this key; a shell pattern, repeatable.")
SINCE: str = typer.Option("", "--since", help="Only events committed since then: 30m, 2h, 3d, or an ISO time.")
UNTIL: str = typer.Option("", "--until", help="Only events committed before then.")
YES: bool = typer.Option(False, "--yes", help="Do not ask.")
AS_JSON: bool = typer.Option(False, "--json", help="Print JSON: one object a line.")

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_ago = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII).fullmatch


def moment(text: str, now_ms: int) -> int | None:
    """`2h` is two hours ago; otherwise an ISO time, in this machine's time zone unless it names one."""
    if not text:
        return None
    if found := _ago(text):
        return now_ms - int(found[1]) * _SECONDS[found[2]] * 1000
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"{text!r} is not a time", remedy="Write 30m, 2h, 3d or 2w for a time ago, or 2026-03-01T12:00:00Z."
        ) from None


def wanted(reasons: list[str], types: list[str], keys: list[str], since: str, until: str) -> DeadLetterFilter:
    known = [reason.value for reason in Reason]
    for reason in reasons:
        if reason not in known:
            raise ConfigError(f"there is no reason {reason!r}", remedy=f"There are: {', '.join(known)}.")
    now = time.time_ns() // 1_000_000
    return DeadLetterFilter(tuple(reasons), tuple(types), tuple(keys), moment(since, now), moment(until, now))


@dataclass(frozen=True, slots=True)
class Choice:
    """Dead letters by id, or all open ones that match the filters."""

    ids: tuple[DeadLetterId, ...]
    wanted: DeadLetterFilter

    def ranges(self, reader: DeadLetterReader) -> Ranges:
        """The offsets that the topic holds now. Later dead letters are not selected."""
        return {} if self.ids else reader.ranges(self.wanted.since_ms)

    def letters(
        self, reader: DeadLetterReader, ranges: Ranges, resolved: ResolvedIds
    ) -> Generator[DeadLetter, None, None]:
        """The selected dead letters; those given by id even if they are resolved, so that the caller can report it."""
        if self.ids:
            for each in self.ids:
                letter = reader.fetch(each)
                self._require_key(letter)
                yield letter
            return
        with closing(reader.open(self.wanted, ranges, resolved)) as letters:
            yield from letters

    def _require_key(self, letter: DeadLetter) -> None:
        """Checks the key that was given with an id, which protects against a mistyped id."""
        keys = self.wanted.keys
        if keys and letter.key_text not in keys:
            raise ConfigError(
                f"the dead letter {letter.id} has the key {letter.key_text!r}, not {' or '.join(map(repr, keys))}",
                why="A key given with an id must be the key of that dead letter.",
                remedy=f"See `tailrace dlq show … {letter.id}`; nothing was done.",
            )


def choose(ids: list[str] | None, found: DeadLetterFilter, *, all_open: bool = False, hint: str) -> Choice:
    """Raises ConfigError if the selection is ambiguous or empty."""
    if ids and (all_open or found != DeadLetterFilter(keys=found.keys)):
        raise ConfigError(
            "dead letters are selected both by id and by filters", remedy="Give ids (with --key as a check) or filters."
        )
    if all_open and found:
        raise ConfigError("--all-open is given together with filters", remedy="Give --all-open or filters, not both.")
    if not ids and not all_open and not found:
        raise ConfigError("no dead letters are selected", remedy=hint)
    return Choice(tuple(dict.fromkeys(DeadLetterId.parse(each) for each in ids or ())), found)
