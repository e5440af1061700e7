"""A mempool that accepts a transaction only after it is in the outbox."""

from __future__ import annotations

import os
from pathlib import Path

from examples.transaction_mirror.transactions import Transaction, encode
from tailrace.embedded import EmbeddedOutbox, strict


class Refused(Exception):
    """The mempool does not take the transaction."""


class Mempool:
    """Its accepted transactions are the lines of a file, which it reads again when it starts."""

    def __init__(self, file: Path, outbox: EmbeddedOutbox) -> None:
        self._outbox = outbox
        self._hashes = set(file.read_text().split()) if file.exists() else set()
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __len__(self) -> int:
        return len(self._hashes)

    def add_tx(self, transaction: Transaction, *, is_new_tx: bool = True) -> None:
        """Accepts a transaction, or raises. One that comes back after a reorganisation of the chain is not new."""
        with strict(self._outbox, transaction.hash, encode(transaction), is_new=is_new_tx):
            self._insert(transaction)

    def _insert(self, transaction: Transaction) -> None:
        if int(transaction.nonce, 16) % 10 == 9:
            raise Refused(f"the nonce {transaction.nonce} is too high")
        if transaction.hash in self._hashes:
            raise Refused(f"{transaction.hash} is in the mempool already")
        os.write(self._file, f"{transaction.hash}\n".encode())
        self._hashes.add(transaction.hash)
