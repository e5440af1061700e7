"""Errors of a block whose transaction does not hold marker and effects together."""

from __future__ import annotations

from tailrace.errors import NotInTransaction, TransactionEnded


def not_in_transaction(remedy: str) -> NotInTransaction:
    return NotInTransaction(
        "the event was not marked as processed: there is no transaction",
        why="Marker and effects must be committed together. The connection commits every statement by itself, its "
        "transaction is aborted, or it is closed.",
        remedy=remedy,
    )


def transaction_ended() -> TransactionEnded:
    return TransactionEnded(
        "the body of once() has ended the transaction",
        why="Marker and effects must be committed together. What the body did before its commit may be stored, what "
        "it did after may be lost.",
        remedy="Commit and roll back after the block, never inside of it. Check the effects of this event.",
    )
