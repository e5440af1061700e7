"""Finds the cage events of a transaction: Boot, Request, Update, Retract and Burn. Pure.

Anybody may send outputs to the cage's address, mint under other policies, or use the same redeemers for other scripts.
So each rule looks at the policy, the address of the spent output, and data that can be decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from examples.chain_indexer.blocks import (
    Output,
    RequestDatum,
    StateDatum,
    Transaction,
    TxIn,
    request_datum,
    state_datum,
)


class Cage(NamedTuple):
    """The script that is indexed."""

    policy: str
    address: str


class Boot(NamedTuple):
    """A transaction mints exactly one token of the policy, and an output of the cage holds its state."""

    state: StateDatum


class Request(NamedTuple):
    """An output of the cage has the data of a request."""

    tx_in: TxIn
    request: RequestDatum


class Update(NamedTuple):
    """The state of a token is spent with `Modify`, and continues; spent requests are processed."""

    state: StateDatum
    processed: list[TxIn]


class Retract(NamedTuple):
    """A request is spent with `Retract`."""

    tx_in: TxIn


class Burn(NamedTuple):
    """A transaction burns exactly one token of the policy."""

    token: str


CageEvent = Boot | Request | Update | Retract | Burn


def detect(cage: Cage, transaction: Transaction, spent: Mapping[TxIn, Output]) -> Iterator[CageEvent]:
    """Yields the events of a transaction. `spent` has the outputs that its inputs refer to."""
    minted = transaction.mint.get(cage.policy, {})
    if list(minted.values()) == [1]:
        state = _state_output(cage, transaction, next(iter(minted)))
        if state is not None:
            yield Boot(state)
    for tx_in in sorted(transaction.inputs):
        output = spent[tx_in]
        if output.address != cage.address:
            continue
        redeemer, state = transaction.redeemers.get(tx_in), state_datum(output)
        if redeemer == "Modify" and state is not None and _holds(cage, output, state.token):
            continued = _state_output(cage, transaction, state.token)
            if continued is not None:
                yield Update(continued, _processed(cage, transaction, spent, state.token))
        elif redeemer == "Retract" and request_datum(output) is not None:
            yield Retract(tx_in)
    for index, output in enumerate(transaction.outputs):
        request = request_datum(output) if output.address == cage.address else None
        if request is not None:
            yield Request(f"{transaction.id}#{index}", request)
    if list(minted.values()) == [-1]:
        yield Burn(next(iter(minted)))


def _state_output(cage: Cage, transaction: Transaction, token: str) -> StateDatum | None:
    """Returns the new state of a token: the data of the cage's output that holds it."""
    for output in transaction.outputs:
        state = state_datum(output)
        if (
            output.address == cage.address
            and state is not None
            and state.token == token
            and _holds(cage, output, token)
        ):
            return state
    return None


def _processed(cage: Cage, transaction: Transaction, spent: Mapping[TxIn, Output], token: str) -> list[TxIn]:
    """Returns the spent requests for a token, in the order in which they are applied."""
    found = []
    for tx_in in sorted(transaction.inputs):
        request = request_datum(spent[tx_in]) if spent[tx_in].address == cage.address else None
        if request is not None and request.token == token and transaction.redeemers.get(tx_in) != "Retract":
            found.append(tx_in)
    return found


def _holds(cage: Cage, output: Output, token: str) -> bool:
    return output.assets.get(cage.policy, {}).get(token) == 1
