"""The tree of all errors that Tailrace raises: meaning, who can fix it, and what the pipeline does.

    TailraceError
    ├── ConfigError                 a setting is wrong                          user    HALT  (exit 2)
    │   ├── SourceEmbedded          the pipeline's source is an embedded outbox, which only its service can read
    │   ├── StartWhereInvalid       the predicate of the first read (source.start_where) cannot be used
    │   ├── StartWhereChanged       the predicate is not the one that an unfinished first read began with
    │   ├── TransactionEnded        a handler has ended the transaction of its events
    │   ├── EventNotSettled         an agent asked for its next event without once() or skip() for the last one
    │   ├── EventSettledTwice       an agent called once() or skip() again for the same event
    │   ├── NoOutboxTable           the command needs an outbox table, and the pipeline reads messages
    │   ├── PipelineUnknown         the worker has no pipeline of this name
    │   ├── PipelineExists          the worker already has a pipeline of this name
    │   ├── ConfigsReadOnly         the worker cannot change this pipeline's configuration
    │   ├── ConfigTopicUnfit        the topic of configurations is not compacted, or has several partitions
    │   ├── AddressInUse            another process listens on the address of the worker's HTTP port
    │   ├── PortUnprotected         other machines could reach the HTTP port without authentication or encryption
    │   ├── NotAuthenticated        the HTTP port does not know the token or the certificate of a request
    │   ├── NotAuthorized           the role of a token or certificate does not allow a request
    │   ├── JobUnknown              the worker has no job of this id
    │   ├── EventUnknown            neither the outbox nor Kafka has an event with this id
    │   ├── DebeziumOffsetUnfit     Debezium's stored offset is missing, or nothing can be continued from it
    │   ├── DebeziumRunning         Debezium's connector still runs, or may run
    │   └── TakeoverUncertain       the topics lack events before ones that Debezium has published later
    ├── Unavailable                 a server is unavailable for now             peer    RETRY
    │   ├── SourceUnavailable       the database cannot be reached or closed the connection
    │   ├── SlotBusy                another session reads the slot
    │   ├── PipelineBusy            another instance runs the pipeline
    │   ├── KafkaUnavailable        Kafka cannot be reached or is too slow
    │   ├── OutcomeUnknown          a Kafka transaction may or may not be committed
    │   ├── RegistryUnavailable     the schema registry cannot be reached or is too slow
    │   ├── StoreUnavailable        a projection's database cannot be reached
    │   ├── ArchiveUnavailable      the store of the archive cannot be reached
    │   ├── TokenUnavailable        the server of login tokens cannot be reached, or answers with something else
    │   ├── WorkerUnavailable       the worker that a command is sent to cannot be reached
    │   ├── WorkerBusy              the worker runs as many operations as it may
    │   ├── TooManyRequests         a client sends more requests than the HTTP port accepts
    │   ├── TopicLimitsChanged      a topic accepts less than the producer was configured for; the next attempt adapts
    │   ├── RecordsRefused          a topic refuses single records; the next attempt dead-letters or delays them
    │   └── RecordDelayed           a refused record is sent again after its delay
    ├── CertificateInvalid          a server's certificate is not accepted      user    HALT
    ├── TokenRefused                no login token is issued to this client     user    HALT
    ├── SourceError                 the log cannot be followed safely           user    HALT
    │   ├── AccessRefused           a login, privilege or server setting is missing
    │   ├── SourceReadOnly          the server is a standby and accepts no writes
    │   ├── SlotMissing             there is a stored position, but no slot
    │   ├── SlotLost                the server removed WAL that the slot still needed
    │   ├── SlotAhead               the slot was moved beyond the stored position
    │   ├── SlotUnclaimed           there is a slot, but no stored position
    │   ├── WrongLog                the position is of another cluster, timeline, database, slot, table or collection
    │   ├── PositionAhead           the stored position is beyond the server's log
    │   ├── LogDiverged             the server's log differs from what was read before
    │   ├── PublicationBroken       the publication is gone, changed or incomplete
    │   ├── UndecodableTransaction  Postgres cannot decode a transaction
    │   ├── TableRewritten          the rows of an unfinished first read can no longer be identified
    │   ├── HistoryLost             MongoDB's log no longer reaches back to the stored position
    │   ├── StreamChanged           the watched collections are not those of the stored position
    │   ├── CollectionGone          an outbox collection is missing, was dropped or renamed
    │   ├── EventTooLarge           MongoDB cannot send a change because it is too large
    │   ├── PositionForgotten       the pipeline has run before, but there is no stored position
    │   ├── RecoveryUnfinished      a recovery was started and is not complete
    │   ├── RecoveryUncertain       for some rows nothing shows whether they were published
    │   ├── LayoutMismatch          the outbox lacks a column or index that is needed
    │   ├── UnexpectedChange        an UPDATE, DELETE or TRUNCATE, and source.on_change is halt
    │   └── ProtocolError           the server violated its protocol           ours
    ├── PipelineCrashed             the process of a pipeline ended unexpectedly  ours   HALT
    ├── MarksRefused                delivery marks cannot be written; publishing continues  user    HALT
    ├── ArchiveError                the archive cannot be used                  user    HALT
    │   ├── ArchiveDamaged          a file or manifest entry is missing, or was changed
    │   └── ArchiveBusy             another archiver has added a file at the same time
    ├── DeadLetterMissing           no dead letter has this id                  user    HALT  (exit 2)
    ├── OutOfReach                  the log no longer reaches back to a rewind's target  user    HALT  (exit 2)
    ├── PublishError                Kafka refuses permanently                   user    HALT
    │   ├── Fenced                  another instance of this pipeline took over         (exit 4)
    │   ├── OffsetsTopicUnfit       the offsets topic is missing, or not compacted
    │   ├── OffsetRecordCorrupt     the stored position cannot be read
    │   ├── ParkingFull             too many keys are parked, or one is parked for too long
    │   ├── ParkingUnfit            a parking topic has wrong settings, or lost waiting events
    │   ├── TopicMissing            an output topic does not exist and may not be created
    │   └── TopicRefused            a topic refuses our records (rights, size, policy)
    ├── ProjectionError             a projection cannot continue safely         user    HALT
    │   ├── EventsLost              events were deleted before they were applied
    │   ├── TopicReplaced           a topic is not the one that was read before
    │   ├── ReadRefused             Kafka refuses to let it read (rights, group)
    │   ├── AgentCrashed            an agent of the same app fails repeatedly
    │   ├── AgentEnded              an agent has returned, and its events are not applied any more
    │   ├── PositionMoved           its offsets were set back while it ran
    │   ├── ProjectionStalled       it has made no progress, or had no partitions, for too long
    │   ├── RecordDamaged           a record of a topic cannot be read: its checksum or its compression is wrong
    │   ├── StoreInUse              another process has opened the folder of a RocksDB store
    │   ├── StoreFailed             RocksDB cannot open, read or write the folder of a store
    │   ├── BlockOutOfOrder         a block or a rollback does not fit the chain in a RocksDB store
    │   ├── RollbackTooDeep         a rollback goes back further than the undo log of a RocksDB store
    │   └── BehindHorizon           a reset would apply events whose markers were pruned       (exit 2)
    ├── EventNotApplied             an agent's event was rolled back; it is applied again  peer    RETRY
    ├── SchemaError                 a schema is not usable                      user    HALT
    │   ├── SchemaVersionInvalid    a schema's version is neither a whole number nor major.minor.patch
    │   └── RegistryRefused         the registry refuses the credentials, or is not a registry
    ├── OutboxError                 a service cannot add an event to its outbox user    HALT
    │   ├── NotInTransaction        the writer, or the inbox, was called outside of a transaction
    │   ├── EventInvalid            the event could never be published
    │   ├── EventExists             the outbox already has an event with this id
    │   ├── NotCommitted            the event's transaction is not committed
    │   ├── EventDeadLettered       the event was dead-lettered instead of published
    │   ├── ReceiptUnavailable      nothing shows whether the event is published
    │   └── NotPublishedYet         the event was not published within the time limit   RETRY
    ├── InboxError                  a consumer cannot mark an event as processed user   HALT
    │   ├── MarkerInvalid           an event id, consumer group or entity cannot be stored in a marker
    │   └── InboxUnfit              the markers' table or collection is missing, or lacks its unique index
    ├── PipelineStalled             the pipeline runs, but makes no progress    ours    HALT
    ├── Halted                      a bad event, and the policy is `halt`       user    HALT
    └── Rejected                    this one event cannot be published          user    DEAD_LETTER

HALT is the default: only what is known to heal by waiting is retried, and only what concerns a single event is
dead-lettered. Each error says what happened, why, and what to do; none contains a payload or a secret.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum


class Action(Enum):
    """The pipeline's reaction to an error."""

    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    HALT = "halt"


class Reason(Enum):
    """Why an event was dead-lettered: the five words that dead-letter tools filter by."""

    MAX_RETRIES_EXCEEDED = "max_retries_exceeded"
    POISON_MESSAGE = "poison_message"
    SCHEMA_VALIDATION_FAILED = "schema_validation_failed"
    PROCESSING_TIMEOUT = "processing_timeout"
    PERMANENT_FAILURE = "permanent_failure"


class TailraceError(Exception):
    """The base class: `what` happened, `why`, and the `remedy`, in sentences for a person."""

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


class SourceEmbedded(ConfigError):
    pass


class StartWhereInvalid(ConfigError):
    pass


class StartWhereChanged(ConfigError):
    pass


class TransactionEnded(ConfigError):
    pass


class EventNotSettled(ConfigError):
    pass


class EventSettledTwice(ConfigError):
    pass


class NoOutboxTable(ConfigError):
    pass


class PipelineUnknown(ConfigError):
    pass


class PipelineExists(ConfigError):
    pass


class ConfigsReadOnly(ConfigError):
    """`from_file`: the pipeline comes from a file, so only that file can change it."""

    def __init__(self, what: str, *, why: str = "", remedy: str = "", from_file: bool = False) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.from_file = from_file


class ConfigTopicUnfit(ConfigError):
    pass


class AddressInUse(ConfigError):
    pass


class PortUnprotected(ConfigError):
    pass


class NotAuthenticated(ConfigError):
    pass


class NotAuthorized(ConfigError):
    pass


class JobUnknown(ConfigError):
    pass


class EventUnknown(ConfigError):
    exit_code = 1


class DebeziumOffsetUnfit(ConfigError):
    pass


class DebeziumRunning(ConfigError):
    pass


class TakeoverUncertain(ConfigError):
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


class TokenUnavailable(Unavailable):
    pass


class WorkerUnavailable(Unavailable):
    pass


class WorkerBusy(Unavailable):
    pass


class TooManyRequests(Unavailable):
    pass


class TopicLimitsChanged(Unavailable):
    """Retried at once: the next attempt configures its producer for the limits that are known now."""


class RecordsRefused(Unavailable):
    """Retried at once: the next attempt dead-letters these events, or waits before it sends them again.

    `reasons` maps positions to reasons.
    """

    def __init__(self, what: str, reasons: dict[str, str]) -> None:
        super().__init__(what, why="The topic will never accept them.", remedy="The policy for failed events applies.")
        self.reasons = reasons


class RecordDelayed(Unavailable):
    """Retried after `seconds`, which the record's own retry settings determine."""

    def __init__(self, what: str, *, why: str, remedy: str, seconds: float) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.seconds = seconds


class CertificateInvalid(TailraceError):
    pass


class TokenRefused(TailraceError):
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
    """A transaction that the server cannot decode. `rows` is the number of outbox rows received before it failed."""

    def __init__(self, why: str, *, xid: int, commit_lsn: int, commit_ms: int, rows: int) -> None:
        at = datetime.fromtimestamp(commit_ms / 1000, UTC).isoformat(timespec="milliseconds")
        lsn = f"{commit_lsn >> 32:X}/{commit_lsn & 0xFFFFFFFF:X}"
        super().__init__(
            f"the server cannot decode the transaction {xid}, committed at {lsn} ({at}), after {rows} rows of the "
            f"outbox: {why}",
            why="One of its rows is too large to be sent (the limit is 1 GB as text), or contains text that the server "
            "cannot convert. Everything before it is published.",
            remedy="`tailrace recover plan FILE` shows which of its rows are in the table. `recover apply` skips this "
            "transaction alone: it publishes those of its rows that can be read, writes a dead letter that names the "
            "transaction, and lets the pipeline continue after it.",
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


class PipelineCrashed(TailraceError):
    pass


class MarksRefused(TailraceError):
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


class AgentEnded(ProjectionError):
    pass


class PositionMoved(ProjectionError):
    pass


class ProjectionStalled(ProjectionError):
    pass


class RecordDamaged(ProjectionError):
    pass


class StoreInUse(ProjectionError):
    pass


class StoreFailed(ProjectionError):
    pass


class BlockOutOfOrder(ProjectionError):
    pass


class RollbackTooDeep(ProjectionError):
    pass


class BehindHorizon(ProjectionError):
    exit_code = 2


class EventNotApplied(TailraceError):
    """Raised by `once()` of an agent's event. The event is applied again, by this worker or by another one."""

    action = Action.RETRY


class SchemaError(TailraceError):
    exit_code = 2


class SchemaVersionInvalid(SchemaError):
    pass


class RegistryRefused(SchemaError):
    pass


class OutboxError(TailraceError):
    pass


class NotInTransaction(OutboxError):
    pass


class EventInvalid(OutboxError):
    pass


class EventExists(OutboxError):
    pass


class NotCommitted(OutboxError):
    pass


class EventDeadLettered(OutboxError):
    pass


class ReceiptUnavailable(OutboxError):
    pass


class NotPublishedYet(OutboxError):
    action = Action.RETRY


class InboxError(TailraceError):
    pass


class MarkerInvalid(InboxError):
    pass


class InboxUnfit(InboxError):
    pass


class PipelineStalled(TailraceError):
    pass


class Halted(TailraceError):
    pass


class Rejected(TailraceError):
    """One event cannot be published. `explanation` says which field is wrong, what was expected and what was found."""

    action = Action.DEAD_LETTER

    def __init__(self, reason: Reason, explanation: str, *, remedy: str = "") -> None:
        super().__init__(explanation, remedy=remedy)
        self.reason = reason
        self.explanation = explanation


def install_remedy(extra: str) -> str:
    """Returns the remedy of an error about a missing optional library: a command that works in a checkout."""
    return f"In a checkout of Tailrace run pip install '.[{extra}]'"
