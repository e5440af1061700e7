"""The resume check: decides whether streaming may start at the stored position.

A position is never guessed and never skipped. With `adopt` the user accepts the log as it is now.
"""

from __future__ import annotations

from tailrace.errors import PositionAhead, StreamChanged, WrongLog
from tailrace.positions.mongo import ClusterTime, StreamIdentity, TokenPosition


def check_resume(stored: TokenPosition, found: StreamIdentity, now: ClusterTime) -> None:
    """Raises if the position belongs to another log or stream, or lies beyond the end of the log."""
    log = stored.log
    if log.replica_set != found.replica_set or log.database != found.database:
        raise WrongLog(
            f"the stored position {stored} belongs to database {log.database} of replica set "
            f"{log.replica_set}, this is {found.database} of {found.replica_set}",
            why="The settings point to another server or database.",
            remedy="Correct source.mongo or source.collection. If it is intended, `tailrace recover plan FILE` "
            "compares the collection with the topics. One start with --adopt continues from now: existing documents "
            "are not published.",
        )
    if log.pipeline != found.pipeline:
        raise StreamChanged(
            f"the stored position {stored} was made while watching {_names(log)}; the settings now name "
            f"{_names(found)}",
            why="A resume token is valid only for the same stream: with another one, changes could be missed.",
            remedy="Restore source.collection. If the change is intended, `tailrace recover plan FILE` finds the "
            "existing documents of a new collection; one start with --adopt continues from the same time without them.",
        )
    for name, now_id in found.collections.items():
        was = log.collections.get(name, "")
        if was and now_id and was != now_id:
            raise WrongLog(
                f"the collection {found.database}.{name} is not the one that was read: it was re-created, or this is "
                "another cluster",
                why=f"Its UUID was {was} and is {now_id} now.",
                remedy="Correct source.mongo. If the collection was re-created or restored, `tailrace recover plan "
                "FILE` compares it with the topics. To continue from the log as it is, start once with --adopt.",
            )
    if is_ahead(stored, now):
        raise PositionAhead(
            f"the stored position {stored} is beyond the end of the server's log, {now}",
            why="The server was restored from a backup, or lost its last writes.",
            remedy="`tailrace recover plan FILE` compares the collection with the topics, `recover apply` publishes "
            "what is missing. Start once with --adopt to continue from now without it.",
        )


def is_ahead(stored: TokenPosition, now: ClusterTime) -> bool:
    """Whether the log ends before the position; a position without a change may be one increment ahead."""
    due = 0 if stored.ordinal else 1
    return (stored.time.seconds, stored.time.increment - due) > now.pair


def _names(log: StreamIdentity) -> str:
    return f"{log.database}.{', '.join(log.collections)}"
