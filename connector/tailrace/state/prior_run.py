"""Checks that a pipeline which has run before still has its position, for sources whose server does not know that.

A replication slot remembers its pipeline; a change stream does not. If the offsets topic were lost, a start would look
like a first one and skip everything since. But the dead-letter topic is created at the first start, after ownership was
taken, and shows that the pipeline has run. A reported state shows nothing: a start that fails here reports one, too.
"""

from __future__ import annotations

from tailrace.errors import PositionForgotten
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.topics import absent, partition_counts
from tailrace.state.offsets import Admin, read_keys
from tailrace.state.owner_watch import OWNER_SUFFIX


def require_position_known(options: KafkaOptions, admin: Admin) -> None:
    """Raises PositionForgotten if the pipeline has a dead-letter topic, but nothing on the offsets topic."""
    existing = partition_counts(admin)
    if options.dead_letter_topic not in existing:
        return
    ours = {options.pipeline.encode(), (options.pipeline + OWNER_SUFFIX).encode()}
    if options.offsets_topic in existing and read_keys(options, ours, committed=False):
        return
    raise _forgotten(options)


def require_stored(options: KafkaOptions, admin: Admin) -> None:
    """Raises PositionForgotten if the position that this process has stored is gone, with its topic."""
    key = options.pipeline.encode()
    if absent(admin, [options.offsets_topic]) or not read_keys(options, {key}, committed=False):
        raise _forgotten(options)


def _forgotten(options: KafkaOptions) -> PositionForgotten:
    return PositionForgotten(
        f"the pipeline has a dead-letter topic, {options.dead_letter_topic}, but nothing on {options.offsets_topic}",
        why="It has run before, and the offsets topic was deleted or changed. Where to go on is not known.",
        remedy="Check kafka.offsets_topic and pipeline. If the position is lost, `tailrace recover plan FILE` compares "
        "the outbox with the topics. If this is its first start, start once with --adopt: it begins as source.start "
        "says, and published events may be published again or skipped.",
    )
