"""Transactions of a mempool: their raw bytes, and a generator in place of users."""

from __future__ import annotations

import hashlib
import random
import time
from typing import Literal

import msgspec

TYPES: dict[str, tuple[str, ...]] = {
    "INVOKE": ("V0", "V1", "V3"),
    "DECLARE": ("V0", "V1", "V2", "V3"),
    "DEPLOY_ACCOUNT": ("V1", "V3"),
    "DEPLOY": ("V0",),
    "L1_HANDLER": ("V0",),
}
"""The types of transactions with their versions."""
SENDERS = 20
U64 = 2**64 - 1


class ResourceBounds(msgspec.Struct, frozen=True):
    """The most that a V3 transaction pays for gas."""

    l1_gas_max_amount: int
    l1_gas_max_price: str
    l2_gas_max_amount: int
    l2_gas_max_price: str
    l1_data_gas_max_amount: int | None = None
    l1_data_gas_max_price: str | None = None


class Transaction(msgspec.Struct, frozen=True):
    """A validated transaction. Hashes and addresses are hexadecimal texts."""

    hash: str
    type: Literal["INVOKE", "DECLARE", "DEPLOY_ACCOUNT", "DEPLOY", "L1_HANDLER"]
    version: str
    sender: str
    contract: str
    nonce: str
    arrived_ms: int
    signature: list[str]
    charge_fee: bool
    max_fee: str | None = None
    tip: int | None = None
    resource_bounds: ResourceBounds | None = None
    calldata: list[str] | None = None
    class_hash: str | None = None
    compiled_class_hash: str | None = None
    constructor_calldata: list[str] | None = None
    contract_address_salt: str | None = None
    entry_point_selector: str | None = None
    paid_fee_on_l1: str | None = None


encode = msgspec.msgpack.Encoder().encode
"""The raw bytes of a transaction: enough to submit it again."""
decode = msgspec.msgpack.Decoder(Transaction).decode


def transaction(seed: int, number: int, arrived_ms: int | None = None) -> Transaction:
    """Returns a transaction that depends only on `seed` and `number`, apart from its time."""
    chance = random.Random(f"{seed} {number}")  # noqa: S311 - a workload, not a secret

    def felt() -> str:
        return hex(chance.getrandbits(251))

    kind = chance.choice(list(TYPES))
    version = chance.choice(TYPES[kind])
    sender = hex(int(hashlib.sha256(f"{seed} {chance.randrange(SENDERS)}".encode()).hexdigest(), 16) >> 6)
    given: dict[str, object] = {}
    if version == "V3":
        given["tip"] = chance.choice([0, 7, U64])
        given["resource_bounds"] = ResourceBounds(
            chance.getrandbits(40),
            felt(),
            chance.choice([0, U64]),
            felt(),
            *((chance.getrandbits(40), felt()) if chance.random() < 0.5 else ()),
        )
    elif kind != "L1_HANDLER":
        given["max_fee"] = felt()
    if kind in ("INVOKE", "L1_HANDLER"):
        given["calldata"] = [felt() for _ in range(chance.randrange(8))]
    if kind in ("DECLARE", "DEPLOY_ACCOUNT", "DEPLOY"):
        given["class_hash"] = felt()
    if kind == "DECLARE" and version in ("V2", "V3"):
        given["compiled_class_hash"] = felt()
    if kind in ("DEPLOY_ACCOUNT", "DEPLOY"):
        given |= {"constructor_calldata": [felt()], "contract_address_salt": felt()}
    if kind == "L1_HANDLER":
        given |= {"entry_point_selector": felt(), "paid_fee_on_l1": felt()}
    return Transaction(
        hash=hex(int(hashlib.sha256(f"tx {seed} {number}".encode()).hexdigest(), 16) >> 6),
        type=kind,  # type: ignore[arg-type] # one of TYPES
        version=version,
        sender=sender,
        contract=felt() if kind in ("DEPLOY_ACCOUNT", "DEPLOY", "L1_HANDLER") else sender,
        nonce=hex(number),
        arrived_ms=time.time_ns() // 1_000_000 if arrived_ms is None else arrived_ms,
        signature=[felt(), felt()] if kind != "L1_HANDLER" else [],
        charge_fee=kind != "L1_HANDLER",
        **given,  # type: ignore[arg-type] # by name
    )
