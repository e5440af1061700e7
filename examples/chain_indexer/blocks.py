"""Blocks, transactions and the data of cage outputs, as they are in the topic."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

M = TypeVar("M", bound="Model")
TxIn = str
"""An output of an earlier transaction: `<transaction>#<index>`."""
TokenId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
"""All of the same length: it is the prefix of the token's keys."""


class Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class StateDatum(Model):
    """Data of the output that holds a token: its owner and the root of its trie."""

    kind: Literal["state"] = "state"
    token: TokenId
    owner: str
    root: str


class RequestDatum(Model):
    """Data of an output that asks for a change of a token's trie. `value` is None to delete the key."""

    kind: Literal["request"] = "request"
    token: TokenId
    owner: str
    key: str
    value: str | None


class Output(Model):
    """`assets` are quantities by policy and token; `datum` is anything that its author has written."""

    address: str
    assets: dict[str, dict[str, int]] = {}
    datum: dict[str, object] | None = None


class Transaction(Model):
    """`mint` are minted (or burned) quantities by policy and token; `redeemers` are the arguments of script inputs."""

    id: str
    inputs: list[TxIn] = []
    outputs: list[Output] = []
    mint: dict[str, dict[str, int]] = {}
    redeemers: dict[TxIn, str] = {}


class Block(Model):
    """`parent` is the id of the block before it, empty for the first."""

    slot: int
    id: str
    parent: str
    transactions: list[Transaction]


class Point(Model):
    """A block to roll back to; slot -1 is before the first block."""

    slot: int
    id: str


def state_datum(output: Output) -> StateDatum | None:
    return _decoded(StateDatum, output)


def request_datum(output: Output) -> RequestDatum | None:
    return _decoded(RequestDatum, output)


def _decoded(model: type[M], output: Output) -> M | None:
    """Returns None if it is not such data: anybody may write anything to an address."""
    try:
        return model.model_validate(output.datum, strict=True)
    except ValidationError:
        return None
