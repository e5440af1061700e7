"""The document of a transaction in the mirror: its 23 fields, and the indexes of the collection."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bson import Binary, Decimal128, Int64
from bson.datetime_ms import DatetimeMS
from pymongo import ASCENDING, DESCENDING, IndexModel

from examples.transaction_mirror.transactions import ResourceBounds, Transaction, decode
from tailrace.embedded import Entry

STATUS = "PENDING"
"""Documents are inserted, and never updated."""
INDEXES = [
    IndexModel([("sender_address", ASCENDING), ("arrived_at", DESCENDING)]),
    IndexModel([("arrived_at", DESCENDING)]),
    IndexModel([("status", ASCENDING), ("arrived_at", DESCENDING)]),
    IndexModel([("tx_type", ASCENDING), ("arrived_at", DESCENDING)]),
    IndexModel([("sender_address", ASCENDING), ("nonce", ASCENDING)]),
]


def document_of(entry: Entry, chain_id: str) -> dict[str, Any]:
    """Returns the document of an outbox entry; `raw_transaction` has its bytes unchanged, for a replay."""
    found: Transaction = decode(entry.raw)
    if found.hash != entry.text_key:
        raise ValueError("the entry's key is not the transaction's hash")
    return {
        "_id": found.hash,
        "tx_type": found.type,
        "tx_version": found.version,
        "sender_address": found.sender,
        "contract_address": found.contract,
        "nonce": found.nonce,
        "arrived_at": DatetimeMS(found.arrived_ms),
        "inserted_at": datetime.now(UTC),
        "max_fee": found.max_fee,
        "tip": _u64(found.tip),
        "resource_bounds": _bounds(found.resource_bounds),
        "signature": found.signature,
        "calldata": found.calldata,
        "class_hash": found.class_hash,
        "compiled_class_hash": found.compiled_class_hash,
        "constructor_calldata": found.constructor_calldata,
        "contract_address_salt": found.contract_address_salt,
        "entry_point_selector": found.entry_point_selector,
        "paid_fee_on_l1": found.paid_fee_on_l1,
        "raw_transaction": Binary(entry.raw),
        "chain_id": chain_id,
        "status": STATUS,
        "charge_fee": found.charge_fee,
    }


def _bounds(given: ResourceBounds | None) -> dict[str, Any] | None:
    if given is None:
        return None
    return {
        "l1_gas_max_amount": _u64(given.l1_gas_max_amount),
        "l1_gas_max_price": given.l1_gas_max_price,
        "l2_gas_max_amount": _u64(given.l2_gas_max_amount),
        "l2_gas_max_price": given.l2_gas_max_price,
        "l1_data_gas_max_amount": _u64(given.l1_data_gas_max_amount),
        "l1_data_gas_max_price": given.l1_data_gas_max_price,
    }


def _u64(value: int | None) -> Int64 | Decimal128 | None:
    """BSON's integers have a sign: larger numbers are decimals."""
    if value is None:
        return None
    return Int64(value) if value < 2**63 else Decimal128(str(value))
