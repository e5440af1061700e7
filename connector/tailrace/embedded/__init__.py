"""An outbox inside the service: an embedded RocksDB, for services without a database of their own.

from tailrace.embedded import EmbeddedOutbox, strict

outbox = EmbeddedOutbox("/var/lib/node/outbox")
with strict(outbox, tx_hash, raw):
    mempool.accept(transaction)
"""

from tailrace.embedded.acceptance import strict
from tailrace.embedded.drainer import Drainer
from tailrace.embedded.mongo import MongoTarget
from tailrace.embedded.outbox import EmbeddedOutbox
from tailrace.embedded.records import Entry

__all__ = ["Drainer", "EmbeddedOutbox", "Entry", "MongoTarget", "strict"]
