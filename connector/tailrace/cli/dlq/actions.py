"""`tailrace dlq redrive` and `discard`: resolve dead letters, each at most once however often they are run."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import typer

from tailrace.cli.dlq.context import DlqContext, Require, find_context, ids_first
from tailrace.cli.dlq.edit import edited as edit_payload
from tailrace.cli.dlq.parked_dead_letters import ParkedDeadLetterRequests
from tailrace.cli.dlq.parked_keys import first_letters_of, give_up
from tailrace.cli.dlq.results import ResolutionReport
from tailrace.cli.dlq.selection import (
    AS_JSON,
    BOOTSTRAP,
    FILE,
    IDS,
    KAFKA_SETTING,
    KEY,
    LETTERS,
    REASON,
    SINCE,
    TYPE,
    UNTIL,
    YES,
    Choice,
    choose,
    wanted,
)
from tailrace.cli.dlq.view import describe_resolution
from tailrace.cli.output import say
from tailrace.dlq import resolutions
from tailrace.dlq.dead_letter import DeadLetter, DeadLetterId
from tailrace.dlq.reader import DeadLetterReader
from tailrace.dlq.redrive import RedriveItem, RedrivePublisher
from tailrace.dlq.resolutions import Action, Resolution, ResolvedIds
from tailrace.errors import ConfigError, Rejected
from tailrace.kafka.reader import Ranges
from tailrace.state import offsets

Prepare = Callable[[DeadLetter], RedriveItem]


def redrive(
    file: Path | None = FILE,
    ids: list[str] = IDS,
    all_open: bool = typer.Option(False, "--all-open", help="Every dead letter that is open now."),
    reason: list[str] = REASON,
    type_name: list[str] = TYPE,
    key: list[str] = KEY,
    since: str = SINCE,
    until: str = UNTIL,
    edit: bool = typer.Option(False, "--edit", help="Edit the payload of one dead letter in $EDITOR first."),
    payload: Path | None = typer.Option(None, "--payload", metavar="FILE", help="Use this payload (one dead letter)."),
    as_new: bool = typer.Option(
        False, "--as-new", help="Write the event to the outbox again, as a new row with a new id (layout storage)."
    ),
    why: str = typer.Option("", "--why", help="The reason, stored with the resolution."),
    yes: bool = YES,
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show which would pass and which would not."),
    as_json: bool = AS_JSON,
    letters: str = LETTERS,
    bootstrap: str = BOOTSTRAP,
    kafka_setting: list[str] = KAFKA_SETTING,
) -> int:
    """Publish dead letters with the present routing, validation and format.

    Each is published exactly once: its resolution is written in the same Kafka transaction. If the command is killed,
    run it again; resolved dead letters are skipped. One that still fails is reported and stays open, and the others
    continue. The pipeline may run at the same time. For a row that could not be read, --edit and --payload take the
    row as JSON, as `dlq show` prints it.

    Newer events of the same key may have been published since; consumers then see the redriven event after them. For a
    parked key the pipeline publishes the dead letter first, and then everything that waited behind it.

    With --as-new, the event is not published by this command: it is inserted into the outbox as a new row, with a new
    id, the same sequence number and the original id as replay_of in its metadata, and the pipeline publishes it. The
    dead letter is resolved as discarded, with the new id. Run it again if it is killed: no second row is added.

    With --letters, records that consumers dead-lettered are written back unchanged to the topic they were read from.

    Exit codes: 0 none failed, 1 some still fail, 3 Kafka refused or is unavailable, 4 another redrive has started.

    \b
    Examples:
      tailrace dlq redrive orders.yaml 0-42
      tailrace dlq redrive orders.yaml 0-42 --edit --why 'typo in the currency'
      tailrace dlq redrive orders.yaml --type OrderPlaced --since 2h --dry-run
      tailrace dlq redrive orders.yaml --all-open --yes
      tailrace dlq redrive storage.yaml 0-42 --as-new --yes
      tailrace dlq redrive 0-42 --letters order-summary.dead-letters --bootstrap localhost:9092
    """
    file, ids = ids_first(file, ids, bootstrap)
    choice = choose(
        ids,
        wanted(reason, type_name, key, since, until),
        all_open=all_open,
        hint="Select dead letters by id or by filters, or give --all-open.",
    )
    _require_one(choice, edit=edit, payload=payload)
    context = find_context(file, letters, bootstrap, kafka_setting)
    publishing, reader, outcome = context.publishing(), context.reader(), ResolutionReport(as_json)
    replaced: dict[DeadLetterId, tuple[DeadLetter, bool]] = {}

    def prepare(letter: DeadLetter) -> RedriveItem:
        sent, changed = replaced.get(letter.id, (letter, False))
        record = publishing.again(sent, edited=changed)
        return RedriveItem(sent, _resolution("redriven", letter, why, topic=record.topic, edited=changed), record)

    new_rows = context.new_rows() if as_new else None

    def prepare_new(letter: DeadLetter) -> RedriveItem:
        prepare(letter)  # raises Rejected if it would be dead-lettered again
        sent, changed = replaced.get(letter.id, (letter, False))
        new_id = new_rows.add(letter, sent.value if changed else None) if new_rows else ""
        return RedriveItem(sent, _resolution("discarded", letter, why, edited=changed, new_id=new_id), None)

    ranges, counted = _count(reader, choice)
    if counted and (edit or payload):
        replaced = _replaced(reader, choice, payload)
        if not replaced:
            say("The payload was not changed. Nothing was redriven.", sys.stderr)
            return 1
    if dry_run or not counted:
        return _try(reader, choice, ranges, prepare, outcome)
    if not (yes or _confirmed(counted, "Publish", warning=_NEWER)):
        return 1
    if new_rows is not None:
        return _act(context, choice, ranges, prepare_new, outcome)
    return _act(context, choice, ranges, prepare, outcome, require=publishing.topic_manager())


def discard(
    file: Path | None = FILE,
    ids: list[str] = IDS,
    reason: list[str] = REASON,
    type_name: list[str] = TYPE,
    key: list[str] = KEY,
    since: str = SINCE,
    until: str = UNTIL,
    parked_key: list[str] = typer.Option(
        [], "--parked-key", metavar="KEY", help="The first event of this parked key, even if its dead letter is gone."
    ),
    aggregate: str = typer.Option("", "--aggregate", help="With --parked-key: the aggregate of the key."),
    why: str = typer.Option(..., "--why", help="Why it is not needed; stored with the resolution."),
    yes: bool = YES,
    as_json: bool = AS_JSON,
    letters: str = LETTERS,
    bootstrap: str = BOOTSTRAP,
    kafka_setting: list[str] = KAFKA_SETTING,
) -> int:
    """Discard dead letters: record who did it and why, and list them no longer.

    Nothing is deleted: `dlq list --all` shows them until the topic's retention removes them. A --key given with an id
    must be the key of that dead letter, which protects against a mistyped id.

    --parked-key discards the first event of a parked key and releases the events that wait behind it. It also works if
    the topic has deleted the dead letter; `dlq parked` shows such keys. The pipeline carries it out when it runs.

    \b
    Examples:
      tailrace dlq discard orders.yaml 0-42 --key order-7 --why 'test data'
      tailrace dlq discard orders.yaml --type Experiment --until 3d --why 'no longer used' --yes
      tailrace dlq discard orders.yaml --parked-key order-7 --aggregate order --why 'its dead letter is gone' --yes
    """
    file, ids = ids_first(file, ids, bootstrap)
    chosen = wanted(reason, type_name, key, since, until)
    if not why.strip():
        raise ConfigError("--why is empty", remedy="Say why the dead letters are not needed.")
    if aggregate and not parked_key:
        raise ConfigError("--aggregate is only used with --parked-key", remedy="Give --parked-key KEY, too.")
    if parked_key:
        if ids or chosen:
            raise ConfigError("--parked-key is given together with ids or filters", remedy="Give one or the other.")
        context = find_context(file, letters, bootstrap, kafka_setting)
        there, gone = first_letters_of(context, parked_key, aggregate)
        if gone:
            if not (yes or _confirmed(Counter({"letter_gone": len(gone)}), "Discard")):
                return 1
            code = give_up(context, gone, whoami(), why, as_json=as_json)
            if not there:
                return code
        ids = [str(letter.id) for letter in there]
    choice = choose(ids, chosen, hint="Select dead letters by id or by filters, such as --type.")
    context = find_context(file, letters, bootstrap, kafka_setting)

    def prepare(letter: DeadLetter) -> RedriveItem:
        return RedriveItem(letter, _resolution("discarded", letter, why))

    reader, outcome = context.reader(), ResolutionReport(as_json)
    ranges, counted = _count(reader, choice)
    if not counted:
        return _try(reader, choice, ranges, prepare, outcome)
    if not (yes or _confirmed(counted, "Discard")):
        return 1
    return _act(context, choice, ranges, prepare, outcome)


_NEWER = "Newer events of the same keys may have been published since. Consumers will see these after them."


def _require_one(choice: Choice, *, edit: bool, payload: Path | None) -> None:
    if edit and payload:
        raise ConfigError("--edit and --payload are given together", remedy="Choose one of them.")
    if (edit or payload) and len(choice.ids) != 1:
        raise ConfigError("--edit and --payload are for one dead letter", remedy="Give the id of one dead letter.")


def _replaced(
    reader: DeadLetterReader, choice: Choice, payload: Path | None
) -> dict[DeadLetterId, tuple[DeadLetter, bool]]:
    """The one dead letter with its new payload, and whether that differs from the original; empty if unchanged."""
    (letter,) = choice.letters(reader, {}, ResolvedIds())
    if payload is not None:
        try:
            # Most programs end the last line of a file.
            value: bytes | None = payload.read_bytes().removesuffix(b"\n").removesuffix(b"\r")
        except OSError as error:
            raise ConfigError(f"{payload} cannot be read: {error.strerror}", remedy="Name a file.") from None
    elif letter.kind == "omitted":
        raise ConfigError(
            f"the dead letter {letter.id} does not contain its payload, so there is nothing to edit",
            remedy="Save the payload from its source, and give it with --payload FILE.",
        )
    else:
        value = edit_payload(b"" if letter.kind == "null" else letter.value, str(letter.id))
    if value is None:
        return {}
    return {letter.id: (letter.with_payload(value), not letter.is_original(value))}


def _count(reader: DeadLetterReader, choice: Choice) -> tuple[Ranges, Counter[str]]:
    """The number of selected open dead letters by reason."""
    resolved, ranges = reader.resolved_ids(), choice.ranges(reader)
    with closing(choice.letters(reader, ranges, resolved)) as letters:
        counted = Counter(letter.reason for letter in letters if letter not in resolved)
    return ranges, counted


def _confirmed(counted: Counter[str], what: str, *, warning: str = "") -> bool:
    """Asks for confirmation; without a terminal, --yes is required."""
    letters = f"{counted.total()} dead letter{'s' * (counted.total() != 1)}"
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{what.lower()} {letters}? There is no terminal to ask on",
            remedy="Check them with `tailrace dlq list`, then give --yes.",
        )
    by_reason = ", ".join(f"{number} {reason}" for reason, number in counted.most_common())
    if warning:
        say(warning, sys.stderr)
    if typer.confirm(f"{what} {letters} ({by_reason})?", err=True):
        return True
    say("Nothing was done.", sys.stderr)
    return False


def _try(reader: DeadLetterReader, choice: Choice, ranges: Ranges, prepare: Prepare, outcome: ResolutionReport) -> int:
    """Reports what would be done, without doing it."""
    resolved = reader.resolved_ids()
    with closing(choice.letters(reader, ranges, resolved)) as letters:
        for letter in letters:
            if letter in resolved:
                _skip(reader, letter, outcome)
            elif (item := _prepared(letter, prepare, outcome)) and item.record:
                outcome.report(letter, "would pass", f", to {item.record.topic}", topic=item.record.topic)
    return outcome.end()


def _act(
    context: DlqContext,
    choice: Choice,
    ranges: Ranges,
    prepare: Prepare,
    outcome: ResolutionReport,
    require: Require = lambda _: None,
) -> int:
    options = context.kafka
    resolutions.ensure(options, offsets.admin_client(options))
    reader, publisher, parked = context.reader(), RedrivePublisher(options, require), ParkedDeadLetterRequests(options)
    publisher.open()
    # From now on the resolutions are final: another command cannot add one without fencing this one.
    resolved = reader.resolved_ids(final=True, must_exist=True)
    with closing(choice.letters(reader, ranges, resolved)) as letters:
        for letter in letters:
            if letter in resolved:
                _skip(reader, letter, outcome)
            elif item := _prepared(letter, prepare, outcome):
                if letter in parked:
                    parked.add(letter, item)
                else:
                    outcome.sent(publisher.add(item))
                if letter.fingerprint is not None:
                    resolved.note(letter.id, item.resolution)  # skips a copy of it that was selected as well
    outcome.sent(publisher.flush())
    parked.send(outcome)
    return outcome.end()


def _prepared(letter: DeadLetter, prepare: Prepare, outcome: ResolutionReport) -> RedriveItem | None:
    try:
        return prepare(letter)
    except Rejected as rejected:
        outcome.failed(letter, rejected.reason.value, rejected.explanation, rejected.remedy)
        return None


def _skip(reader: DeadLetterReader, letter: DeadLetter, outcome: ResolutionReport) -> None:
    resolution = reader.resolutions([letter]).get(letter.id)
    outcome.report(
        letter,
        "skipped",
        f": {describe_resolution(resolution)}" if resolution else "",
        mark=resolution.to_json() if resolution else None,
    )


def _resolution(action: Action, letter: DeadLetter, why: str, **more: Any) -> Resolution:  # noqa: ANN401 - fields of Resolution
    now = time.time_ns() // 1_000_000
    return Resolution(action, now, whoami(), why, position=letter.position, fingerprint=letter.fingerprint, **more)


def whoami() -> str:
    """`user@host`, or the user's number if it has no name, as in a container."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
