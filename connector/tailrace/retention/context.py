"""Runs retention for a pipeline: finds out what the pipeline, its dead letters and its consumers say about the rows.

What the pipeline has passed is read first. Whatever happens to these events, a dead letter or a record on a topic, is
then found by the readers that follow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any

from tailrace.config.retention import RetentionSettings
from tailrace.errors import ConfigError, NoOutboxTable, TailraceError, Unavailable
from tailrace.projections.core.store import ReadableStore
from tailrace.replay.outbox_rows import passed_rows_of
from tailrace.replay.source_log import topics_of
from tailrace.replay.table_points import before_first_start, stored_position
from tailrace.retention.confirmations import ConfirmationFormat, read_confirmations
from tailrace.retention.consumers import Consumer, UnreadEvents
from tailrace.retention.outbox import RetentionOutbox
from tailrace.retention.pinned_events import PinnedEvents
from tailrace.retention.postgres_outbox import PostgresRetentionOutbox
from tailrace.retention.run import RetentionPolicy, RetentionReport, RetentionRun, RowJudge
from tailrace.retention.unstored import UnstoredConfirmations
from tailrace.sources.mongo.options import MongoOptions
from tailrace.state import position_history
from tailrace.worker.options import column_map
from tailrace.worker.wiring import Wiring


def retention_settings(wiring: Wiring) -> RetentionSettings:
    if wiring.settings.source.messages is not None:
        raise NoOutboxTable(
            f"the events of the pipeline {wiring.settings.pipeline} are messages, which are in no table",
            why="Messages of pg_logical_emit_message are only in the log, so there is nothing to delete.",
            remedy="Remove `retention:` from the settings.",
        )
    if wiring.settings.retention is None:
        raise ConfigError(
            f"the pipeline {wiring.settings.pipeline} has no retention",
            remedy="Configure it in its settings, such as `retention: {after: 30d}`; see docs/retention.md.",
        )
    return wiring.settings.retention


def open_outbox(wiring: Wiring) -> RetentionOutbox:
    if isinstance(wiring.database, MongoOptions):
        from tailrace.retention.mongo_outbox import MongoRetentionOutbox  # optional driver

        return MongoRetentionOutbox(wiring.database, wiring.settings.pipeline, column_map(wiring.settings).id)
    return PostgresRetentionOutbox(wiring.database, wiring.settings.pipeline)


def retain(
    wiring: Wiring,
    consumers: Sequence[Consumer],
    *,
    dry_run: bool,
    ignored: Collection[str] = (),
    accept_expired: bool = False,
    on_progress: Callable[[RetentionReport], None] = lambda _: None,
) -> RetentionReport:
    """Deletes the rows that may be deleted now, or reports what it would do.

    `ignored` are pipelines that no longer read the same outbox. `accept_expired`: rows whose dead letter may have
    expired unseen count as published.
    """
    settings = retention_settings(wiring)
    now_ms = time.time_ns() // 1_000_000
    policy = policy_at(settings, now_ms)
    stored = stored_position(wiring)
    entries = position_history.read(wiring.kafka)
    before_ms = now_ms if policy.before_ms is None else policy.before_ms
    start, notes = passed_rows_of(wiring, stored, entries, before_ms, ignored)
    notes += before_first_start(wiring, stored, "count as published, although they never were", "stay")
    with ExitStack() as opened:
        outbox = open_outbox(wiring)
        opened.callback(outbox.close)
        try:
            outbox.require_deletable()
        except Unavailable:
            raise
        except TailraceError as error:
            if not dry_run:
                raise
            notes.append(f"`retention apply` is refused: {error.what}. {error.remedy}")
        notes += outbox.hints()
        if not dry_run:
            outbox.state.ensure()
        confirmed: Any = outbox.state
        if (given := settings.confirmations) is not None:
            if dry_run:
                confirmed = UnstoredConfirmations(outbox.state)
                opened.callback(confirmed.close)
            form = ConfirmationFormat(given.id, given.time)
            notes += read_confirmations(wiring.kafka, given.topic, form, confirmed).notes
        layout = wiring.processor(with_rules=False).layout
        pinned = PinnedEvents(wiring.kafka, layout, outbox.state)
        opened.callback(pinned.close)
        if accept_expired:
            pinned.accept_uncertain()
        if pinned.uncertain_before_ms:
            notes.append(
                f"{wiring.kafka.dead_letter_topic} has deleted dead letters that no run of retention has seen: rows "
                "from before the oldest remaining one stay. If none of them was needed, run it once with "
                "--accept-expired-dead-letters"
            )
        if not dry_run:
            pinned.remember()
        unread: UnreadEvents | None = None
        if settings.consumers:
            unread = UnreadEvents(wiring.kafka, consumers, topics_of(wiring, entries))
            opened.callback(unread.close)
            notes += unread.notes
        run = RetentionRun(
            outbox, RowJudge(policy, layout, pinned, confirmed, unread), policy, start, on_progress=on_progress
        )
        report = _run(run, outbox, settings, before_ms, dry_run=dry_run)
        if given is not None and not dry_run and policy.confirmed_ms is not None:
            report.forgotten = outbox.state.forget_unknown(policy.confirmed_ms - round(given.keep_unknown * 1000))
        report.notes[:0] = notes
        return report


def _run(
    run: RetentionRun, outbox: RetentionOutbox, settings: RetentionSettings, before_ms: int, *, dry_run: bool
) -> RetentionReport:
    if settings.partitions == "drop" and isinstance(outbox, PostgresRetentionOutbox):
        outbox.partitions.require_droppable()
        act = run.plan_partitions if dry_run else run.drop_partitions
        return act(outbox.partitions, before_ms)
    return run.plan() if dry_run else run.apply()


def policy_at(settings: RetentionSettings, now_ms: int) -> RetentionPolicy:
    """Returns the policy with times instead of durations."""
    given = settings.confirmations
    return RetentionPolicy(
        before_ms=None if settings.after is None else now_ms - round(settings.after * 1000),
        confirmed_ms=None if given is None else now_ms - round(given.delay * 1000),
        batch_rows=settings.batch_rows,
    )


def consumers_of(apps: Sequence[tuple[str, Any]]) -> list[Consumer]:
    """Reads the stored offsets of all projections of these apps; each app with the name that the settings give it."""
    return [consumer for name, app in apps for consumer in asyncio.run(_positions(name, app))]


async def _positions(name: str, app: Any) -> list[Consumer]:  # noqa: ANN401 - a ProjectionApp, which imports Faust
    if not app.projections:
        raise ConfigError(
            f"the app {name} has no projections",
            why="retention.consumers names it, so that rows stay until its projections have passed them.",
            remedy="Name the app that declares them, or remove it from retention.consumers.",
        )
    found: list[Consumer] = []
    for projection in app.projections:
        if isinstance(projection.store, ReadableStore):  # its worker may run
            positions = await projection.store.stored_positions(projection.name)
        else:
            await projection.store.open(projection.name)
            try:
                positions = await projection.store.positions()
            finally:
                await projection.store.close()
        found.append(
            Consumer(
                projection.name,
                tuple(projection.topics),
                {(each.topic, each.number): offset for each, offset in positions.items()},
            )
        )
    return found
