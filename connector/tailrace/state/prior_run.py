"""Has this pipeline run before? Kafka's traces of it, for a source whose server keeps none.

A replication slot remembers its pipeline; a change stream does not. Were the offsets topic lost, a start would look
like a first one and pass over everything since. The dead-letter topic is made at the first start, after the claim, and
tells otherwise. An announced state is no trace: a start that was refused here has announced just that.
"""

from __future__ import annotations

from tailrace.errors import PositionForgotten
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.topics import absent, partition_counts
from tailrace.state.offsets import Admin, read_keys
from tailrace.state.owner_watch import OWNER_SUFFIX


def require_position_known(options: KafkaOptions, admin: Admin) -> None:
    """Refuses a pipeline that has a dead-letter topic, and nothing at all on the offsets topic."""
    existing = partition_counts(admin)
    if options.dead_letter_topic not in existing:
        return
    ours = {options.pipeline.encode(), (options.pipeline + OWNER_SUFFIX).encode()}
    if options.offsets_topic in existing and read_keys(options, ours, committed=False):
        return
    raise _forgotten(options)


def require_stored(options: KafkaOptions, admin: Admin) -> None:
    """Refuses to go on without the position that this very process has stored: its topic was deleted meanwhile."""
    key = options.pipeline.encode()
    if absent(admin, [options.offsets_topic]) or not read_keys(options, {key}, committed=False):
        raise _forgotten(options)


def _forgotten(options: KafkaOptions) -> PositionForgotten:
    return PositionForgotten(
        f"the pipeline has a dead-letter topic, {options.dead_letter_topic}, but no trace on {options.offsets_topic}",
        why="It has run before, and the offsets topic was deleted or is another one now: where to go on is not known.",
        remedy="Check kafka.offsets_topic and pipeline. If the position is lost for good, `tailrace recover plan FILE` "
        "compares the outbox with the topics. If this is its first start, start once with --adopt: it begins as "
        "source.start says, and what is already published may come again or be passed over.",
    )
