"""Makes a replay plan: the source, the range, and what would happen to the events. Changes nothing.

The log is used if it reaches back far enough, because it has every event in commit order. Otherwise the table or the
collections are read, as far as rows are still there, else the archive. A replay always ends at the pipeline's position:
it never publishes what the pipeline has yet to publish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tailrace.errors import ConfigError, OutOfReach
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition
from tailrace.replay.archive_range import ReplayRange, archive_range, has_archive, moved_range
from tailrace.replay.estimate import Estimate, estimate_events
from tailrace.replay.plan import Origin, ReplayPlan, Selection, Target, new_id
from tailrace.replay.plan_source import SelectedSource, open_selected
from tailrace.replay.points import EventId, Moment, Oldest, Point, parse
from tailrace.replay.source_log import describe_position, open_log, resolve
from tailrace.replay.table_points import before_first_start, from_collections, from_table, stored_position, time_of
from tailrace.replay.targets import require_new, require_order, require_uncompacted
from tailrace.state import position_history
from tailrace.state.position_history import PositionEntry
from tailrace.verify.purged import purged_by_retention
from tailrace.wakeup import Wakeup
from tailrace.worker.wiring import Wiring


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The arguments of the user. `since` may be empty if ids are given."""

    since: str
    until: str
    selection: Selection
    from_table: bool = False
    from_archive: bool = False
    target: Target = "same"
    suffix: str = ""


def make_plan(
    wiring: Wiring, settings: str, request: ReplayRequest, *, on_progress: Callable[[SelectedSource, int], None]
) -> ReplayPlan:
    """Makes the plan. `settings` is the path of the settings file in the plan."""
    stored = stored_position(wiring)
    since, until = _points(request)
    if request.target != "shadow":
        require_order(wiring)
    entries = position_history.read(wiring.kafka)
    range_ = _range(wiring, request, stored, entries, since, until)
    id_ = new_id()
    processor = wiring.processor(with_rules=False)
    estimate, missing = _estimate(wiring, processor, id_, range_, on_progress)
    anywhere = not (request.since or request.from_table or request.from_archive)
    if anywhere and missing and missing == set(range_.selection.ids) and has_archive(wiring):
        # Rows that are no longer in the table may be in the archive.
        range_ = archive_range(wiring, range_.selection)
        estimate, missing = _estimate(wiring, processor, id_, range_, on_progress)
    if missing:
        raise _unknown(missing, range_.origin, request, elsewhere=has_archive(wiring))
    if request.suffix:
        require_new(wiring, [topic + request.suffix for topic in estimate.by_topic])
    if request.target == "same":
        require_uncompacted(wiring.admin(), estimate.by_topic)
    return ReplayPlan(
        id=id_,
        pipeline=wiring.settings.pipeline,
        settings=settings,
        made_ms=time.time_ns() // 1_000_000,
        origin=range_.origin,
        target=request.target,
        suffix=request.suffix,
        given=(request.since, request.until),
        start=range_.start,
        end=range_.end,
        selection=range_.selection,
        estimate=estimate,
        notes=(*range_.notes, *_policies(processor, estimate)),
    )


def _estimate(
    wiring: Wiring,
    processor: EventProcessor,
    id_: str,
    range_: ReplayRange,
    on_progress: Callable[[SelectedSource, int], None],
) -> tuple[Estimate, set[str]]:
    """Runs the estimate. Returns it with the requested ids that were not found."""
    missing = set(range_.selection.ids)
    source = open_selected(
        wiring,
        processor,
        id_=id_,
        origin=range_.origin,
        start=range_.start,
        end=range_.end,
        selection=range_.selection,
        wakeup=Wakeup(),
    )
    estimate = estimate_events(source, processor, lambda event: missing.discard(event.id), on_progress)
    return estimate, missing


def _points(request: ReplayRequest) -> tuple[Point, Point | None]:
    now = datetime.now().astimezone()
    if not request.since and not request.selection.ids:
        raise ConfigError("--from is missing", remedy="Give a starting point, such as --from 2h, or events with --id.")
    since = parse(request.since, now) if request.since else Oldest()
    until = parse(request.until, now) if request.until else None
    if isinstance(since, Moment) and isinstance(until, Moment) and since.at_ms >= until.at_ms:
        raise _reversed(request.since, request.until)
    return since, until


def _range(
    wiring: Wiring,
    request: ReplayRequest,
    stored: Position,
    entries: Sequence[PositionEntry],
    since: Point,
    until: Point | None,
) -> ReplayRange:
    selection = replace(
        request.selection,
        since_ms=since.at_ms if isinstance(since, Moment) else None,
        until_ms=until.at_ms if isinstance(until, Moment) else None,
    )
    if request.from_archive:
        return archive_range(wiring, _timed(selection, since, until, entries))
    # Without a starting point, an event given by its id may be anywhere in the table.
    if request.from_table or not request.since:
        return _table(wiring, stored, entries, selection, since, until)
    try:
        return _log(wiring, request, stored, entries, selection, since, until)
    except OutOfReach as error:
        if request.target == "in_place" or (until is not None and not isinstance(until, Moment)):
            raise
        found = moved_range(wiring, _timed(selection, since, until, entries))
        range_ = found or _table(wiring, stored, entries, selection, since, until)
        return replace(
            range_, notes=(f"the log does not reach back that far: {error.what}. {error.why}", *range_.notes)
        )


def _log(
    wiring: Wiring,
    request: ReplayRequest,
    stored: Position,
    entries: Sequence[PositionEntry],
    selection: Selection,
    since: Point,
    until: Point | None,
) -> ReplayRange:
    log = open_log(wiring, stored, entries)
    try:
        start = resolve(wiring, log, entries, since)
        end = stored
        # A time is not a position, because commits are not exactly in its order. Read to the end and filter by time.
        if until is not None and not isinstance(until, Moment):
            end = resolve(wiring, log, entries, until)
    finally:
        log.close()
    if end.progress > stored.progress:
        raise ConfigError(
            f"--to {request.until} is {describe_position(end)}, but the pipeline is at {describe_position(stored)}",
            why="A replay never publishes an event for the first time.",
            remedy="Omit --to, or give an earlier point.",
        )
    if start.progress > end.progress:
        raise _reversed(request.since, request.until or f"{describe_position(stored)}, where the pipeline is")
    if start.progress == end.progress and isinstance(since, EventId) and isinstance(until, EventId):
        raise ConfigError(
            f"{since} and {until} are in the same transaction, so nothing is between them",
            why="An event means the point right before its transaction.",
            remedy="Give a later --to, such as an event of a later transaction; or select the events with --id. "
            "Nothing was changed.",
        )
    if isinstance(start, LsnPosition):
        # A large transaction that was in progress there is replayed whole, because it was committed later.
        start = replace(start, cut=None, table_read=None)
    return ReplayRange("log", start, end, selection)


def _table(
    wiring: Wiring,
    stored: Position,
    entries: Sequence[PositionEntry],
    selection: Selection,
    since: Point,
    until: Point | None,
) -> ReplayRange:
    selection = _timed(selection, since, until, entries)
    timed = selection.since_ms is not None or selection.until_ms is not None
    if timed and wiring.database.timestamp is None:
        raise ConfigError(
            "the outbox has no column with the time of a row, so it cannot be read by time",
            why="The log does not reach back that far, and without such a column the table cannot be filtered by time.",
            remedy="Name the column in outbox.columns.timestamp; or use all rows with --from oldest --from-table, and "
            "select by --type, --key or --id.",
        )
    order = ", ".join(wiring.database.order_by)
    if wiring.database.timestamp is None and isinstance(stored, LsnPosition):
        order += " (first of the transactions that wrote them, if that column does not grow)"
    notes = [f"rows come in the order of {order}, not in commit order; purged rows are neither published nor counted"]
    if purged := purged_by_retention(wiring.database, (selection.since_ms, selection.until_ms)):
        notes.append(f"{purged:,} rows of that time were deleted by retention, so they are not in this plan")
    notes += before_first_start(wiring, stored, "are included", "are left out")
    if not isinstance(stored, LsnPosition):
        return ReplayRange("table", from_collections(stored), stored, selection, tuple(notes))
    end = replace(stored, cut=None)
    start, is_all = from_table(wiring, end, entries)
    if not is_all:
        notes.append("the pipeline has not caught up: rows that it may not have published yet are left out")
    return ReplayRange("table", start, end, selection, tuple(notes))


def _timed(selection: Selection, since: Point, until: Point | None, entries: Sequence[PositionEntry]) -> Selection:
    """Uses times only, because a table or an archive knows nothing else."""
    since_ms, until_ms = time_of(since, entries, "--from"), time_of(until, entries, "--to")
    return replace(selection, since_ms=since_ms, until_ms=until_ms)


def _policies(processor: EventProcessor, estimate: Estimate) -> list[str]:
    halting = sorted(reason.value for reason in processor.halt_on if estimate.fails[reason.value])
    if not halting:
        return []
    return [f"the policy for {', '.join(halting)} is `halt`: the replay would stop before the first such event"]


def _reversed(since: str, until: str) -> ConfigError:
    return ConfigError(
        f"--from {since} is not before --to {until}",
        remedy="Give an earlier --from, or a later --to, such as --from 2h --to 1h. Nothing was changed.",
    )


def _unknown(missing: set[str], origin: Origin, request: ReplayRequest, *, elsewhere: bool) -> ConfigError:
    some = sorted(missing)[:5]
    where = {"table": "the table", "archive": "the archive", "log": "that part of the log"}[origin]
    if elsewhere and origin == "archive" and not request.from_archive:
        where = "the table, nor all of them in the archive"
    if elsewhere and origin == "table" and not request.from_table:
        where = "the table, while others are: make a separate plan for those that are archived; not in the table"
    return ConfigError(
        f"{len(missing)} of the events named by --id are not in {where}: {', '.join(some)}",
        why="They were never written, were purged, are outside of --from and --to, or existed before the pipeline's "
        "first start (source.start: now) and were never published.",
        remedy="Correct the ids (the header `id` of a record), or give an earlier --from. Nothing was changed.",
    )
