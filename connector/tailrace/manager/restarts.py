"""When a failed pipeline is restarted by itself, and after which delay. Pure.

A restart is safe in any case: it begins at the stored position and passes all checks again. It helps only if somebody
may fix the cause without Tailrace (rights, topics, certificates), or if the process itself was the cause. Errors that
ask for a decision about data stay FAILED: the remedy says what to do.
"""

from __future__ import annotations

from dataclasses import dataclass

STEADY_SECONDS = 600.0
"""After a run of this length, delays start again with the shortest."""

MAY_RECOVER = frozenset(
    {
        # The process itself.
        "PipelineCrashed",
        "PipelineStalled",
        "ProtocolError",
        # Another instance took over: the restarted one waits and takes over when that one ends.
        "Fenced",
        # An operator fixes the server, its rights or its topics, and nothing of Tailrace.
        "CertificateInvalid",
        "TokenRefused",
        "AccessRefused",
        "SourceReadOnly",
        "PublicationBroken",
        "LayoutMismatch",
        "MarksRefused",
        "PublishError",
        "OffsetsTopicUnfit",
        "ParkingFull",
        "TopicMissing",
        "TopicRefused",
        # Schemas are in files and registries that the worker does not watch.
        "SchemaError",
        "SchemaVersionInvalid",
        "RegistryRefused",
        # Retried inside the process; listed in case one of them ends it.
        "Unavailable",
        "SourceUnavailable",
        "SlotBusy",
        "PipelineBusy",
        "KafkaUnavailable",
        "TokenUnavailable",
        "OutcomeUnknown",
        "RegistryUnavailable",
        "StoreUnavailable",
        "ArchiveUnavailable",
        "TopicLimitsChanged",
        "RecordsRefused",
        "RecordDelayed",
    }
)
"""Codes of errors after which a restart may help."""

STAYS_FAILED = frozenset(
    {
        # The settings: the worker restarts the pipeline when they are changed.
        "TailraceError",
        "ConfigError",
        "StartWhereInvalid",
        "StartWhereChanged",
        "TransactionEnded",
        "EventNotSettled",
        "EventSettledTwice",
        "NoOutboxTable",
        "PipelineUnknown",
        "PipelineExists",
        "ConfigsReadOnly",
        "ConfigTopicUnfit",
        "AddressInUse",
        "PortUnprotected",
        # The position and the log do not fit together: a person decides (`tailrace recover`, `--adopt`).
        "SourceError",
        "SlotMissing",
        "SlotLost",
        "SlotAhead",
        "SlotUnclaimed",
        "WrongLog",
        "PositionAhead",
        "LogDiverged",
        "UndecodableTransaction",
        "TableRewritten",
        "HistoryLost",
        "StreamChanged",
        "CollectionGone",
        "EventTooLarge",
        "PositionForgotten",
        "RecoveryUnfinished",
        "RecoveryUncertain",
        "UnexpectedChange",
        "OffsetRecordCorrupt",
        "ParkingUnfit",
        "OutOfReach",
        # A bad event, and the policy asks for a person.
        "Halted",
        "Rejected",
        # Not raised by pipelines.
        "DebeziumOffsetUnfit",
        "DebeziumRunning",
        "EventUnknown",
        "JobUnknown",
        "NotAuthenticated",
        "NotAuthorized",
        "SourceEmbedded",
        "TakeoverUncertain",
        "TooManyRequests",
        "WorkerBusy",
        "WorkerUnavailable",
        "ArchiveError",
        "ArchiveDamaged",
        "ArchiveBusy",
        "DeadLetterMissing",
        "ProjectionError",
        "EventsLost",
        "TopicReplaced",
        "ReadRefused",
        "AgentCrashed",
        "AgentEnded",
        "EventNotApplied",
        "PositionMoved",
        "ProjectionStalled",
        "RecordDamaged",
        "StoreInUse",
        "StoreFailed",
        "BlockOutOfOrder",
        "RollbackTooDeep",
        "BehindHorizon",
        "OutboxError",
        "NotInTransaction",
        "EventInvalid",
        "EventExists",
        "NotCommitted",
        "EventDeadLettered",
        "ReceiptUnavailable",
        "NotPublishedYet",
        "InboxError",
        "MarkerInvalid",
        "InboxUnfit",
    }
)
"""All other codes. A test makes sure that every error is in one of the two sets."""


def may_recover(code: str) -> bool:
    """Whether a restart may help after an error with this code."""
    return code in MAY_RECOVER


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Delays of n²+n minutes after n restarts: at once, then 2, 6, 12, 20, 30, 42 and 56 minutes, then the maximum.

    `minute` scales them: it is the length of a minute in seconds.
    """

    minute: float = 60.0
    maximum: float = 60.0
    """Longest delay, in minutes."""
    enabled: bool = True

    def delay(self, restarts: int) -> float:
        """Returns the seconds before the next restart, after `restarts` automatic ones."""
        return min(restarts * restarts + restarts, self.maximum) * self.minute

    def counted(self, restarts: int, ran_seconds: float) -> int:
        """Returns the restarts that count after a run of this length."""
        return 0 if ran_seconds >= STEADY_SECONDS * self.minute / 60.0 else restarts
