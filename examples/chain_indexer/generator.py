"""Makes a chain with forks: blocks with cage transactions and decoys, and what an indexer must know after each block.

The generator keeps its own model of the state, without the indexer's code, and writes down the cage events that it has
made. Decoys look like cage transactions, but break one of the rules.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from examples.chain_indexer.blocks import Block, Output, Point, RequestDatum, StateDatum, Transaction, TxIn
from examples.chain_indexer.detection import Boot, Burn, Cage, CageEvent, Request, Retract, Update
from examples.chain_indexer.trie import root_of

KEYS = [bytes([number]) for number in range(12)]
GENESIS_OUTPUTS = 6
MOST_TOKENS = 4
ORIGIN = Point(slot=-1, id="")
Event = tuple[str, Block | Point]
"""RollForward with a block, or RollBackward with a point."""


@dataclass
class Token:
    """A booted token: the output that holds it, its owner and its keys."""

    tx_in: TxIn
    owner: str
    values: dict[bytes, bytes] = field(default_factory=dict)


@dataclass
class ChainModel:
    """The state after a block."""

    tip: Point = ORIGIN
    unspent: dict[TxIn, Output] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    requests: dict[TxIn, RequestDatum] = field(default_factory=dict)
    events: list[CageEvent] = field(default_factory=list)
    """The cage events of its block."""

    def state_datum(self, token: str) -> StateDatum:
        known = self.tokens[token]
        return StateDatum(token=token, owner=known.owner, root=root_of(known.values).hex())


class ChainGenerator:
    """Yields events, and knows the chain that is left after them. `depth` is that of the deepest fork."""

    def __init__(self, cage: Cage, seed: int, *, depth: int = 8) -> None:
        self._cage = cage
        self._chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._depth = depth
        self._made = 0
        self.blocks: list[Block] = []
        self.models = [ChainModel()]
        """The state before the first block, and after each block of the chain."""

    @property
    def model(self) -> ChainModel:
        return self.models[-1]

    def events(self, count: int, *, forks: float = 0.12) -> Iterator[Event]:
        for _ in range(count):
            if self.blocks and self._chance.random() < forks:
                yield self.roll_back(self._chance.randint(0, min(self._depth, len(self.blocks))))
            else:
                yield self.next_block()

    def roll_back(self, depth: int) -> Event:
        left = len(self.blocks) - depth
        del self.blocks[left:], self.models[left + 1 :]
        return "RollBackward", self.model.tip

    def next_block(self) -> Event:
        model = copy.deepcopy(self.model)
        model.events = []
        transactions = [self._genesis(model)] if not self.blocks else []
        for _ in range(self._chance.randint(0, 5)):
            made = self._chance.choice(self._KINDS)(self, model)
            if made is not None:
                transactions.append(made)
        slot = model.tip.slot + self._chance.randint(1, 20)
        block = Block(slot=slot, id=self._id(), parent=model.tip.id, transactions=transactions)
        model.tip = Point(slot=slot, id=block.id)
        self.blocks.append(block)
        self.models.append(model)
        return "RollForward", block

    def _id(self) -> str:
        self._made += 1
        return hashlib.blake2b(f"{self._chance.random()}-{self._made}".encode(), digest_size=16).hexdigest()

    def _add(
        self,
        model: ChainModel,
        inputs: list[TxIn],
        outputs: list[Output],
        mint: dict[str, dict[str, int]] | None = None,
        redeemers: dict[TxIn, str] | None = None,
    ) -> Transaction:
        """Makes a transaction, which may spend outputs of the same block. Each one also spends a payment."""
        payments = [tx_in for tx_in, output in model.unspent.items() if output.address.startswith("wallet")]
        if payments:
            inputs = [*inputs, self._chance.choice(payments)]
        outputs = [*outputs, Output(address=f"wallet-{self._chance.randrange(5)}")]
        made = Transaction(id=self._id(), inputs=inputs, outputs=outputs, mint=mint or {}, redeemers=redeemers or {})
        for tx_in in made.inputs:
            del model.unspent[tx_in]
        model.unspent |= {f"{made.id}#{index}": output for index, output in enumerate(made.outputs)}
        return made

    def _genesis(self, model: ChainModel) -> Transaction:
        return self._add(model, [], [Output(address=f"wallet-{number}") for number in range(GENESIS_OUTPUTS)])

    def _state_output(self, model: ChainModel, token: str) -> Output:
        datum = model.state_datum(token).model_dump()
        return Output(address=self._cage.address, assets={self._cage.policy: {token: 1}}, datum=datum)

    def _boot(self, model: ChainModel) -> Transaction | None:
        if len(model.tokens) >= MOST_TOKENS:
            return None
        token = self._id()
        model.tokens[token] = Token("", f"owner-{self._chance.randrange(3)}")
        made = self._add(model, [], [self._state_output(model, token)], mint={self._cage.policy: {token: 1}})
        model.tokens[token].tx_in = f"{made.id}#0"
        model.events.append(Boot(model.state_datum(token)))
        return made

    def _request(self, model: ChainModel) -> Transaction | None:
        if not model.tokens:
            return None
        token = self._chance.choice(list(model.tokens))
        requests = [self._new_request(token) for _ in range(self._chance.randint(1, 3))]
        outputs = [Output(address=self._cage.address, datum=each.model_dump()) for each in requests]
        made = self._add(model, [], outputs)
        for index, request in enumerate(requests):
            model.requests[f"{made.id}#{index}"] = request
            model.events.append(Request(f"{made.id}#{index}", request))
        return made

    def _new_request(self, token: str) -> RequestDatum:
        value = None if self._chance.random() < 0.25 else self._chance.randbytes(3).hex()
        return RequestDatum(token=token, owner="owner-1", key=self._chance.choice(KEYS).hex(), value=value)

    def _update(self, model: ChainModel) -> Transaction | None:
        if not model.tokens:
            return None
        name = self._chance.choice(list(model.tokens))
        token = model.tokens[name]
        mine = [tx_in for tx_in, request in model.requests.items() if request.token == name]
        processed = sorted(self._chance.sample(mine, self._chance.randint(len(mine) // 2, len(mine))))
        for tx_in in processed:
            request = model.requests.pop(tx_in)
            if request.value is None:
                token.values.pop(bytes.fromhex(request.key), None)
            else:
                token.values[bytes.fromhex(request.key)] = bytes.fromhex(request.value)
        redeemers = {token.tx_in: "Modify", **dict.fromkeys(processed, "Contribute")}
        made = self._add(model, [*processed, token.tx_in], [self._state_output(model, name)], redeemers=redeemers)
        token.tx_in = f"{made.id}#0"
        model.events.append(Update(model.state_datum(name), processed))
        return made

    def _retract(self, model: ChainModel) -> Transaction | None:
        if not model.requests:
            return None
        tx_in = self._chance.choice(list(model.requests))
        del model.requests[tx_in]
        model.events.append(Retract(tx_in))
        return self._add(model, [tx_in], [], redeemers={tx_in: "Retract"})

    def _burn(self, model: ChainModel) -> Transaction | None:
        if len(model.tokens) < MOST_TOKENS or self._chance.random() < 0.7:
            return None
        name = self._chance.choice(list(model.tokens))
        token = model.tokens.pop(name)
        model.events.append(Burn(name))
        return self._add(model, [token.tx_in], [], {self._cage.policy: {name: -1}}, {token.tx_in: "End"})

    def _decoy(self, model: ChainModel) -> Transaction:
        """Makes a transaction that breaks one rule of the cage's events."""
        token = next(iter(model.tokens), self._id())
        state = StateDatum(token=token, owner="thief", root="00" * 32).model_dump()
        request = self._new_request(token).model_dump()
        here, mint = self._cage.address, self._cage.policy
        foreign = [tx_in for tx_in, output in model.unspent.items() if output.address == "other-script"]
        junk = [
            tx_in
            for tx_in, output in model.unspent.items()
            if output.address == here and (output.datum or {}).get("kind") not in ("state", "request")
        ]
        # States of a thief, without the token.
        fakes = [
            tx_in
            for tx_in, output in model.unspent.items()
            if output.address == here and (output.datum or {}).get("kind") == "state" and mint not in output.assets
        ]
        choices: list[tuple[list[TxIn], list[Output], dict[str, dict[str, int]], dict[TxIn, str]]] = [
            ([], [Output(address="other-script", assets={mint: {token: 1}}, datum=state)], {}, {}),
            ([], [Output(address="other-script", datum=request)], {}, {}),
            (
                [],
                [Output(address=here, assets={"other-policy": {token: 1}}, datum=state)],
                {"other-policy": {token: 1}},
                {},
            ),
            ([], [Output(address=here, datum=None)], {mint: {self._id(): 2}}, {}),
            ([], [Output(address="wallet-1", datum=state)], {mint: {self._id(): 1}}, {}),
            ([], [Output(address=here, datum={"kind": "request", "token": token})], {}, {}),
            ([], [Output(address=here, datum={**request, "key": 5})], {}, {}),
            ([], [Output(address=here, datum={"kind": "junk"})], {mint: {self._id(): 1, self._id(): 1}}, {}),
            ([], [], {"other-policy": {token: -1}}, {}),
            ([], [], {mint: {token: -2}}, {}),
            (foreign[:1], [], {}, dict.fromkeys(foreign[:1], "Modify")),
            (foreign[:1], [], {}, dict.fromkeys(foreign[:1], "Retract")),
            (junk[:1], [], {}, dict.fromkeys(junk[:1], "Retract")),
            (junk[:1], [], {}, dict.fromkeys(junk[:1], "Modify")),
            (fakes[:1], [Output(address=here, datum=state)], {}, dict.fromkeys(fakes[:1], "Modify")),
            (fakes[:1], [], {}, dict.fromkeys(fakes[:1], "Retract")),
        ]
        inputs, outputs, minted, redeemers = self._chance.choice(choices)
        return self._add(model, inputs, outputs, minted, redeemers)

    def _payment(self, model: ChainModel) -> Transaction:
        return self._add(model, [], [Output(address="wallet-0"), Output(address="wallet-1")])

    _KINDS = (_boot, _request, _request, _request, _update, _update, _retract, _burn, _decoy, _decoy, _payment)
