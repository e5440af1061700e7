"""Every error Tailrace raises, whose fault it is, and what follows from it.

    TailraceError
    ├── ConfigError                 a setting is wrong                          user    HALT  (exit 2)
    │   └── TransactionEnded        a handler has ended the transaction of its events
    ├── Unavailable                 a server is away; it may come back          peer    RETRY
    │   ├── SourceUnavailable       the database cannot be reached or hung up
    │   ├── SlotBusy                another session reads the slot
    │   ├── PipelineBusy            another instance runs the pipeline
    │   ├── KafkaUnavailable        Kafka cannot be reached or is too slow
    │   ├── OutcomeUnknown          a Kafka transaction may or may not be committed
    │   ├── RegistryUnavailable     the schema registry cannot be reached or is too slow
    │   ├── StoreUnavailable        a projection's database cannot be reached
    │   ├── ArchiveUnavailable      the place of the archive cannot be reached
    │   ├── TopicLimitsChanged      a topic takes less than the producer was built for: the next attempt fits
    │   └── RecordsRefused          a topic refuses single records for good: set aside in the next attempt
    ├── CertificateInvalid          a server's certificate is not accepted      user    HALT
    ├── SourceError                 the log cannot be followed safely           user    HALT
    │   ├── AccessRefused           login, privilege or server setting missing
    │   ├── SourceReadOnly          the server takes no writes: a standby
    │   ├── SlotMissing             a stored position, but no slot
    │   ├── SlotLost                the server removed WAL the slot still needed
    │   ├── SlotAhead               the slot was moved beyond the stored position
    │   ├── SlotUnclaimed           a slot, but no stored position
    │   ├── WrongLog                another cluster, timeline, database, slot, table or collection
    │   ├── PositionAhead           the stored position is beyond the server's log
    │   ├── LogDiverged             the server's log is another one than was read, from some point on
    │   ├── PublicationBroken       the publication is gone, changed or incomplete
    │   ├── UndecodableTransaction  a transaction that Postgres cannot send
    │   ├── TableRewritten          the rows of an unfinished first read can no longer be identified
    │   ├── HistoryLost             MongoDB's log no longer reaches back to the stored position
    │   ├── StreamChanged           what MongoDB is asked to watch is not what the position was made with
    │   ├── CollectionGone          an outbox collection is missing, was dropped or renamed
    │   ├── EventTooLarge           a change that MongoDB cannot send
    │   ├── PositionForgotten       a pipeline that has run before, but no stored position
    │   ├── RecoveryUnfinished      a recovery has begun and is not complete
    │   ├── RecoveryUncertain       of some rows it cannot be told whether they were published
    │   ├── LayoutMismatch          the outbox table lacks a column the layout needs
    │   ├── UnexpectedChange        an UPDATE, DELETE or TRUNCATE where policy forbids it
    │   └── ProtocolError           what came is not what the server promises  ours
    ├── ArchiveError                the archive cannot be used                  user    HALT
    │   ├── ArchiveDamaged          a file or an entry of it is missing, or is not what was written
    │   └── ArchiveBusy             another archiver has listed a file meanwhile
    ├── DeadLetterMissing           no dead letter has this id                  user    HALT  (exit 2)
    ├── OutOfReach                  the log no longer has what a rewind asks for  user    HALT  (exit 2)
    ├── PublishError                Kafka refuses for good                      user    HALT
    │   ├── Fenced                  another instance of this pipeline took over         (exit 4)
    │   ├── OffsetsTopicUnfit       the offsets topic is missing, or not compacted
    │   ├── OffsetRecordCorrupt     the stored position cannot be read
    │   ├── ParkingFull             too many keys are parked, or one for too long
    │   ├── ParkingUnfit            a topic of parked keys is not as it must be, or lost what waited
    │   ├── TopicMissing            an output topic does not exist and may not be created
    │   └── TopicRefused            a topic refuses our records (rights, size, policy)
    ├── ProjectionError             a projection cannot go on safely            user    HALT
    │   ├── EventsLost              events were deleted before they were applied
    │   ├── TopicReplaced           a topic is not the one that was read before
    │   ├── ReadRefused             Kafka refuses to let it read (rights, group)
    │   ├── AgentCrashed            an agent beside the projections fails again and again
    │   ├── PositionMoved           its position was set back while it ran
    │   ├── ProjectionStalled       it makes no progress, or has no partitions, for too long
    │   ├── RecordsDropped          records that were fetched do not get to it, time and again
    │   └── BehindHorizon           a reset would apply events whose markers are gone       (exit 2)
    ├── SchemaError                 a registered schema is itself not usable    user    HALT
    │   └── RegistryRefused         the registry wants other credentials, or is none
    ├── Halted                      a bad event, and the policy is `halt`       user    HALT
    └── Rejected                    this one event cannot be published          user    DEAD_LETTER

HALT is the default: only what is known to heal by waiting is retried, and only what concerns a single event
is set aside. Each error carries what happened, why, and what to do about it; none carries a payload or a secret.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum


class Action(Enum):
    """What the pipeline does about an error."""

    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    HALT = "halt"


class Reason(Enum):
    """Why an event was set aside; the five words that dead-letter tools filter by."""

    MAX_RETRIES_EXCEEDED = "max_retries_exceeded"
    POISON_MESSAGE = "poison_message"
    SCHEMA_VALIDATION_FAILED = "schema_validation_failed"
    PROCESSING_TIMEOUT = "processing_timeout"
    PERMANENT_FAILURE = "permanent_failure"


class TailraceError(Exception):
    """The base: `what` happened, `why`, and the `remedy`, each a sentence for a person."""

    action = Action.HALT
    exit_code = 3

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.remedy = remedy

    @property
    def code(self) -> str:
        return type(self).__name__

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.what}"]
        if self.why:
            lines.append(f"  why:    {self.why}")
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(lines)


class ConfigError(TailraceError):
    exit_code = 2


class TransactionEnded(ConfigError):
    pass


class Unavailable(TailraceError):
    action = Action.RETRY


class SourceUnavailable(Unavailable):
    pass


class SlotBusy(Unavailable):
    pass


class PipelineBusy(Unavailable):
    pass


class KafkaUnavailable(Unavailable):
    pass


class OutcomeUnknown(Unavailable):
    pass


class RegistryUnavailable(Unavailable):
    pass


class StoreUnavailable(Unavailable):
    pass


class ArchiveUnavailable(Unavailable):
    pass


class TopicLimitsChanged(Unavailable):
    """Not a matter of waiting: the next attempt builds its producer for the limits that are known now."""


class RecordsRefused(Unavailable):
    """Not a matter of waiting: the next attempt knows better. `places` tells which events, and why."""

    def __init__(self, what: str, places: dict[str, str]) -> None:
        super().__init__(what, why="The topic will never take them.", remedy="They are set aside, by policy.")
        self.places = places


class CertificateInvalid(TailraceError):
    pass


class SourceError(TailraceError):
    pass


class AccessRefused(SourceError):
    pass


class SourceReadOnly(SourceError):
    pass


class SlotMissing(SourceError):
    pass


class SlotLost(SourceError):
    pass


class SlotAhead(SourceError):
    pass


class SlotUnclaimed(SourceError):
    pass


class WrongLog(SourceError):
    pass


class PositionAhead(SourceError):
    pass


class LogDiverged(SourceError):
    pass


class PublicationBroken(SourceError):
    pass


class UndecodableTransaction(SourceError):
    """`xid`, `commit_lsn` and `commit_ms` say which; `rows` of the outbox came before the server gave up."""

    def __init__(self, why: str, *, xid: int, commit_lsn: int, commit_ms: int, rows: int) -> None:
        at = datetime.fromtimestamp(commit_ms / 1000, UTC).isoformat(timespec="milliseconds")
        place = f"{commit_lsn >> 32:X}/{commit_lsn & 0xFFFFFFFF:X}"
        super().__init__(
            f"the server cannot decode the transaction {xid}, committed at {place} ({at}), behind {rows} rows of the "
            f"outbox: {why}",
            why="A row of it is too large to be sent (its text may have 1 GB), or holds text that the server cannot "
            "convert. Everything before it is published.",
            remedy="`tailrace recover plan FILE` shows what is in the table of it. `recover apply` skips this one "
            "transaction: it publishes those of its rows that can be read, writes a dead letter that names the "
            "transaction, and lets the pipeline go on behind it.",
        )
        self.xid, self.commit_lsn, self.commit_ms, self.rows = xid, commit_lsn, commit_ms, rows


class TableRewritten(SourceError):
    pass


class HistoryLost(SourceError):
    pass


class StreamChanged(SourceError):
    pass


class CollectionGone(SourceError):
    pass


class EventTooLarge(SourceError):
    pass


class PositionForgotten(SourceError):
    pass


class RecoveryUnfinished(SourceError):
    pass


class RecoveryUncertain(SourceError):
    pass


class LayoutMismatch(SourceError):
    pass


class UnexpectedChange(SourceError):
    pass


class ProtocolError(SourceError):
    pass


class ArchiveError(TailraceError):
    pass


class ArchiveDamaged(ArchiveError):
    pass


class ArchiveBusy(ArchiveError):
    pass


class DeadLetterMissing(TailraceError):
    exit_code = 2


class OutOfReach(TailraceError):
    exit_code = 2


class PublishError(TailraceError):
    pass


class Fenced(PublishError):
    exit_code = 4


class OffsetsTopicUnfit(PublishError):
    pass


class OffsetRecordCorrupt(PublishError):
    pass


class ParkingFull(PublishError):
    pass


class ParkingUnfit(PublishError):
    pass


class TopicMissing(PublishError):
    pass


class TopicRefused(PublishError):
    pass


class ProjectionError(TailraceError):
    pass


class EventsLost(ProjectionError):
    pass


class TopicReplaced(ProjectionError):
    pass


class ReadRefused(ProjectionError):
    pass


class AgentCrashed(ProjectionError):
    pass


class PositionMoved(ProjectionError):
    pass


class ProjectionStalled(ProjectionError):
    pass


class RecordsDropped(ProjectionError):
    pass


class BehindHorizon(ProjectionError):
    exit_code = 2


class SchemaError(TailraceError):
    exit_code = 2


class RegistryRefused(SchemaError):
    pass


class Halted(TailraceError):
    pass


class Rejected(TailraceError):
    """One event cannot be published; `explanation` says which field, what was expected, what came."""

    action = Action.DEAD_LETTER

    def __init__(self, reason: Reason, explanation: str, *, remedy: str = "") -> None:
        super().__init__(explanation, remedy=remedy)
        self.reason = reason
        self.explanation = explanation


def install_remedy(extra: str) -> str:
    """Returns the remedy of an error about a missing optional library: a command that works in a checkout."""
    return f"In a checkout of Tailrace run pip install '.[{extra}]'"
