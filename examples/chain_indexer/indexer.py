"""Applies a block to the nine column families, as one block of `effects` that can be undone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from examples.chain_indexer.blocks import Block, Output, RequestDatum, StateDatum, TxIn
from examples.chain_indexer.detection import Boot, Burn, Cage, CageEvent, Request, Retract, Update, detect
from examples.chain_indexer.trie import Trie
from tailrace.errors import Reason, Rejected
from tailrace.projections import RocksEffects

UNSPENT, UNSPENT_NODES, CONFIG = "kv", "csmt", "config"
TOKENS, REQUESTS, CHECKPOINT = "tokens", "requests", "cage-cfg"
TRIE_NODES, TRIE_VALUES = "trie-nodes", "trie-kv"
FAMILIES = [UNSPENT, UNSPENT_NODES, CONFIG, TOKENS, REQUESTS, CHECKPOINT, TRIE_NODES, TRIE_VALUES]
UNDO_FAMILY = "rollbacks"
"""The ninth: the store's undo log."""
KEEP_BLOCKS = 2160


class Detected(Protocol):
    """Called with each cage event; tests compare them with what the generator has made."""

    def __call__(self, event: CageEvent) -> None: ...


class Indexer:
    """Applies blocks for one cage."""

    def __init__(self, cage: Cage, detected: Detected = lambda event: None) -> None:
        self._cage = cage
        self._detected = detected

    def apply(self, block: Block, effects: RocksEffects) -> None:
        """Applies a block within an open block of `effects`."""
        self._check_config(effects)
        spent = self._resolve(block, effects)
        for transaction in block.transactions:
            events = list(detect(self._cage, transaction, spent))
            unspent = unspent_outputs(effects)
            for tx_in in transaction.inputs:
                unspent.delete(tx_in.encode())
            for index, output in enumerate(transaction.outputs):
                unspent.insert(f"{transaction.id}#{index}".encode(), output.model_dump_json().encode())
            for event in events:
                self._detected(event)
                self._apply_event(event, effects, spent)
        effects.put(CONFIG, b"utxo-root", unspent_outputs(effects).root)
        effects.put(CHECKPOINT, b"", json.dumps({"slot": block.slot, "id": block.id}).encode())

    def _check_config(self, effects: RocksEffects) -> None:
        stored = effects.get(CONFIG, b"cage")
        given = json.dumps(self._cage).encode()
        if stored is None:
            effects.put(CONFIG, b"cage", given)
        elif stored != given:
            raise Rejected(Reason.PERMANENT_FAILURE, f"the index is of another cage: {stored.decode()}")

    def _resolve(self, block: Block, effects: RocksEffects) -> Mapping[TxIn, Output]:
        """Returns the outputs that the block spends, from the state before it and from the block itself."""
        spent: dict[TxIn, Output] = {}
        created: dict[TxIn, Output] = {}
        for transaction in block.transactions:
            for tx_in in transaction.inputs:
                stored = effects.get(UNSPENT, tx_in.encode())
                output = created.get(tx_in) or (Output.model_validate_json(stored) if stored is not None else None)
                if output is None or tx_in in spent:
                    raise Rejected(Reason.PERMANENT_FAILURE, f"{transaction.id} spends {tx_in}, which is not unspent")
                spent[tx_in] = output
            created |= {f"{transaction.id}#{index}": output for index, output in enumerate(transaction.outputs)}
        return spent

    def _apply_event(self, event: CageEvent, effects: RocksEffects, spent: Mapping[TxIn, Output]) -> None:
        match event:
            case Boot(state):
                self._save(state, effects)
            case Request(tx_in, request):
                effects.put(REQUESTS, tx_in.encode(), request.model_dump_json().encode())
            case Update(state, processed):
                trie = trie_of(effects, state.token)
                for tx_in in processed:
                    request = RequestDatum.model_validate(spent[tx_in].datum)
                    if request.value is None:
                        trie.delete(bytes.fromhex(request.key))
                    else:
                        trie.insert(bytes.fromhex(request.key), bytes.fromhex(request.value))
                    effects.delete(REQUESTS, tx_in.encode())
                self._save(state, effects)
            case Retract(tx_in):
                effects.delete(REQUESTS, tx_in.encode())
            case Burn(token):
                effects.delete(TOKENS, token.encode())
                for family in (TRIE_NODES, TRIE_VALUES):
                    for key, _ in effects.items(family, token.encode()):
                        effects.delete(family, key)

    def _save(self, state: StateDatum, effects: RocksEffects) -> None:
        """Stores a token's state; its root must be that of the stored trie."""
        root = trie_of(effects, state.token).root.hex()
        if state.root != root:
            raise Rejected(
                Reason.PERMANENT_FAILURE, f"the root of {state.token} is {state.root} on the chain, and {root} here"
            )
        effects.put(TOKENS, state.token.encode(), state.model_dump_json().encode())


def trie_of(effects: RocksEffects, token: str) -> Trie:
    return Trie(effects, TRIE_NODES, TRIE_VALUES, token.encode())


def unspent_outputs(effects: RocksEffects) -> Trie:
    """Returns the trie of all unspent outputs; its values are the family `kv`."""
    return Trie(effects, UNSPENT_NODES, UNSPENT)
