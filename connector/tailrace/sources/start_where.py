"""The error for a predicate of a first read (`source.start_where`) that was changed before the read is complete."""

from __future__ import annotations

from tailrace.errors import StartWhereChanged


def require_same(before: str, now: str, *, is_default: bool) -> None:
    """Raises if the setting is not the predicate that an unfinished first read began with; empty: all rows.

    `is_default`: the setting is not given, and `marks: rows` sets it. A first read that began without it continues so.
    """
    if before == now or (is_default and not before):
        return
    restore = f"set source.start_where back to `{before}`" if before else "remove source.start_where"
    was, is_ = (f"`{each}`" if each else "not set" for each in (before, now))
    raise StartWhereChanged(
        f"source.start_where is {is_}, but the first read began with {was}, and is not complete",
        why="The rest would be selected by another rule than what is already published: some could be missed.",
        remedy=f"Until the first read is complete, {restore}. To begin again with another one, give the pipeline a new "
        "name, and drop its old slot (Postgres).",
    )
