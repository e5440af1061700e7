"""May streaming start at the stored position? The judgement over what is stored and what the server is. Pure.

The rule behind every branch: a position is never guessed and never skipped. `adopt` is how a person says that things,
as they are now, are meant.
"""

from __future__ import annotations

from tailrace.errors import PositionAhead, StreamChanged, WrongLog
from tailrace.positions.mongo import ClusterTime, StreamIdentity, TokenPosition


def check_resume(stored: TokenPosition, found: StreamIdentity, now: ClusterTime) -> None:
    """Refuses a position of another log, of another question, or of a log that has lost its end."""
    log = stored.log
    if log.replica_set != found.replica_set or log.database != found.database:
        raise WrongLog(
            f"the stored position {stored} belongs to database {log.database} of replica set "
            f"{log.replica_set}, this is {found.database} of {found.replica_set}",
            why="The settings point to another server or database.",
            remedy="Correct source.mongo or source.collection. If it is meant, `tailrace recover plan FILE` compares "
            "the collection with the topics. One start with --adopt goes on from now: what is there already is not "
            "published.",
        )
    if log.pipeline != found.pipeline:
        raise StreamChanged(
            f"the stored position {stored} was made while watching {_names(log)}; now {_names(found)} is asked for",
            why="A resume token is good for the same question only: with another one, changes could be passed over.",
            remedy="Restore source.collection. If the change is meant, `tailrace recover plan FILE` finds what a new "
            "collection holds from before; one start with --adopt goes on from the same time without it.",
        )
    for name, now_id in found.collections.items():
        was = log.collections.get(name, "")
        if was and now_id and was != now_id:
            raise WrongLog(
                f"the collection {found.database}.{name} is not the one that was read: it was made anew, or this is "
                "another cluster",
                why=f"Its UUID was {was} and is {now_id} now.",
                remedy="Mend source.mongo. If the collection was dropped and made anew, or restored, and is to be "
                "followed, `tailrace recover plan FILE` compares it with the topics. To go on from the log as it is, "
                "start once with --adopt.",
            )
    if is_ahead(stored, now):
        raise PositionAhead(
            f"the stored position {stored} is beyond the end of the server's log, {now}",
            why="The server was restored from a backup, or lost its last writes.",
            remedy="`tailrace recover plan FILE` compares the collection with the topics, `recover apply` publishes "
            "what is missing. Start once with --adopt to go on from now without it.",
        )


def is_ahead(stored: TokenPosition, now: ClusterTime) -> bool:
    """Whether the log ends before the position; one with no change behind it may stand where the next write will be."""
    due = 0 if stored.ordinal else 1
    return (stored.time.seconds, stored.time.increment - due) > now.pair


def _names(log: StreamIdentity) -> str:
    return f"{log.database}.{', '.join(log.collections)}"
