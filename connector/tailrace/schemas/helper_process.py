"""The process that helps to check: payloads in, verdicts out, until nobody is at the other end.

    to it      D, number, size; a contract's definition, as JSON, which that number stands for from then on
               P, count, size; the lengths of so many payloads, what each is held to, the payloads themselves
    from it    nothing, once, when it is ready
               count, size; the length of each answer, the answers themselves

What a payload is held to is its contract's number times two, plus one if its keys are unique. The answer to one that
obeys is what the contract's kind writes of it, which for JSON is nothing. Any other has the length `UNSURE`: whoever
asked looks at it himself, finds the words for what is wrong, and decides.
"""

from __future__ import annotations

import socket
import sys
from array import array
from collections.abc import Callable
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any

import jsonschema_rs
import orjson

from tailrace.schemas.checking import parsed
from tailrace.schemas.json_text import NotJsonError
from tailrace.schemas.validators import Surroundings

ASKED = Struct("<cII")
ANSWERED = Struct("<II")
DEFINITION, PAYLOADS = b"D", b"P"
UNSURE = -1
NUMBERS = "i"
"""As arrays hold them: four bytes each, on every machine that this runs on."""

Accept = Callable[[bytes, bool], bytes | None]
"""From a payload, and whether its keys are unique, to the answer; None if that is for others to say."""


def accepting(definition: dict[str, Any]) -> Accept:
    """What a contract of that definition says."""
    if definition["kind"] == "avro":
        from tailrace.schemas.avro.contract import AvroContract
        from tailrace.schemas.avro.values import Misfit

        write = AvroContract.compile("", 1, definition["document"], "", named=definition["named"]).write

        def accept_avro(payload: bytes, keys_unique: bool) -> bytes | None:
            try:
                return write(parsed(payload, keys_unique=keys_unique))
            except (NotJsonError, Misfit):
                return None

        return accept_avro
    around = Surroundings.of(definition["documents"]).at(definition["address"])
    is_valid = jsonschema_rs.validator_for(definition["document"], **around.options()).is_valid

    def accept(payload: bytes, keys_unique: bool) -> bytes | None:
        try:
            return b"" if is_valid(parsed(payload, keys_unique=keys_unique)) else None
        except NotJsonError:
            return None

    return accept


def question(payloads: list[bytes], held_to: list[int]) -> bytes:
    """Payloads as they are sent to the process."""
    lengths = array(NUMBERS, map(len, payloads))
    body = b"".join((lengths.tobytes(), array(NUMBERS, held_to).tobytes(), *payloads))
    return ASKED.pack(PAYLOADS, len(payloads), len(body)) + body


def answers(count: int, body: bytes) -> list[bytes | None]:
    """What the process has answered: for each payload."""
    lengths = array(NUMBERS, body[: 4 * count])
    ends = accumulate((max(length, 0) for length in lengths), initial=4 * count)
    parts = (body[begin:end] for begin, end in pairwise(ends))
    return [None if length == UNSURE else part for length, part in zip(lengths, parts, strict=True)]


def serve(channel: socket.socket) -> None:
    """Answers until the other end is closed."""
    contracts: dict[int, Accept] = {}
    with channel, channel.makefile("rb") as asked:
        channel.sendall(ANSWERED.pack(0, 0))
        while head := asked.read(ASKED.size):
            kind, number, size = ASKED.unpack(head)
            body = asked.read(size)
            if kind == DEFINITION:
                contracts[number] = accepting(orjson.loads(body))
            else:
                channel.sendall(_answer(number, body, contracts))


def _answer(count: int, body: bytes, contracts: dict[int, Accept]) -> bytes:
    lengths, held_to = array(NUMBERS, body[: 4 * count]), array(NUMBERS, body[4 * count : 8 * count])
    found: list[bytes | None] = []
    at = 8 * count
    for length, held in zip(lengths, held_to, strict=True):
        found.append(contracts[held >> 1](body[at : at + length], bool(held & 1)))
        at += length
    told = array(NUMBERS, [UNSURE if each is None else len(each) for each in found])
    answer = b"".join((told.tobytes(), *filter(None, found)))
    return ANSWERED.pack(count, len(answer)) + answer


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
