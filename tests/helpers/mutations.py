"""Changes that break one rule of the connector, as code to run before it: the tests must notice each of them.

Used on real servers (tests/faults/test_mutations.py) and in the simulation (tests/simulation/test_mutations.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CONFIRM_EARLY = """
from tailrace.sources.postgres.source import PostgresSource
read = PostgresSource.read
def early(self, *limits):
    chunk = read(self, *limits)
    if self._table is None:
        self.confirm(chunk.position)
    return chunk
PostgresSource.read = early
"""
CONFIRM_COMMIT_LSN = """
from tailrace.sources.postgres.transactions import Transactions
commit = Transactions._commit
def half(self, message):
    before = self._lsn
    commit(self, message)
    self._lsn = max(before, message.commit_lsn)
Transactions._commit = half
Transactions.idle = lambda self, wal_end, at_ms: False  # or a keepalive would heal it
"""
SKIP_THE_FENCE = """
import random
from tailrace.kafka import publisher
config = publisher.producer_config
def unfenced(options, **more):
    return {**config(options, **more), "transactional.id": f"{options.pipeline}-{random.random()}"}
publisher.producer_config = unfenced
"""
BELIEVE_ABORTED = """
from tailrace.kafka import reader
config = reader.consumer_config
reader.consumer_config = lambda *given: {**config(*given), "isolation.level": "read_uncommitted"}
"""
POSITION_APART = """
from tailrace.state import offsets
from tailrace.kafka.publisher import Publisher
def publish(self, batch):
    # Events first, the position in its own transaction.
    for records in (batch.records, [offsets.record(self._options, batch.position)]):
        self._producer.begin_transaction()
        self._produce(records)
        self._finish(self._producer.commit_transaction)
    self.stored = batch.position
Publisher._publish = publish
"""
DROP_REJECTED = """
from tailrace.pipeline.processor import EventProcessor
EventProcessor._reject = lambda self, *given: None
"""

SKIP_BY_LSN = """
from tailrace.sources.postgres.transactions import ALL_ROWS, Transactions
begin = Transactions._begin
def by_lsn(self, message):
    cut = self._skip
    begin(self, message)
    if cut is not None and message.final_lsn == cut.commit_lsn:
        self._to_skip, self._skip = ALL_ROWS, None  # all rows of a transaction have the same LSN
Transactions._begin = by_lsn
"""
DROP_IF_FULL = """
from tailrace.kafka.publisher import Publisher
produce = Publisher._produce
def drop(self, records):
    for record in records:
        if record.topic == self._options.offsets_topic:
            produce(self, [record])
            continue
        try:
            self._producer.produce(record.topic, record.value, record.key, headers=record.headers)
        except BufferError:
            pass
Publisher._produce = drop
"""


STALE_OWNER = """
from tailrace.worker.supervisor import Supervisor
Supervisor._step_aside = lambda self: None  # an instance that was replaced starts again, and fences the other one
Supervisor._still_ours = lambda self, error: True
"""
NOT_REPLACED = """
from tailrace.worker.supervisor import Supervisor
Supervisor._unless_replaced = lambda self, error: error  # fails because of what its successor did to the slot
"""


def program(folder: Path, *changes: str) -> Sequence[str]:
    """What to give to `Shop.start` to run the connector with these changes."""
    if not any(changes):
        return ("-m", "tailrace")
    script = folder / f"mutant-{len(list(folder.glob('mutant-*')))}.py"
    lines = "".join(changes)
    script.write_text(f"{lines}\nif __name__ == '__main__':\n    from tailrace.cli import main\n    main()\n")
    return (str(script),)
