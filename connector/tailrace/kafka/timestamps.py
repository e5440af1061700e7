"""The timestamp of a record: the commit's own, unless that is long ago or in the future. Pure.

Kafka deletes by the time that a record says. Rows that were in the outbox before the first start, a backlog after a
long outage, a letter that is redriven after weeks: with the time of their commits they would be older than their topic
keeps records, and gone before anybody has read them. A time ahead of the broker's (the database's clock is wrong, or a
row says so) keeps a record from being deleted, and more than an hour ahead Kafka refuses it by default
(`message.timestamp.after.max.ms`). The header `timestamp` says the commit's time in any case.
"""

from __future__ import annotations

OLD_MS = 3_600_000
"""Shorter than any topic keeps records that somebody is to read."""


def stamp(committed_ms: int, now_ms: int) -> int:
    """Both in Unix milliseconds."""
    return committed_ms if now_ms - OLD_MS < committed_ms <= now_ms else now_ms
