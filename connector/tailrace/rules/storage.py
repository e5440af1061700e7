"""An example of a rule: events about storage transactions must name the stores that took part.

rules:
  checks: {"STORAGE_TRANSACTION_*": ["tailrace.rules.storage:names_stores"]}
"""

from __future__ import annotations

from tailrace.rules.rule import RuleEvent


def names_stores(event: RuleEvent) -> str | None:
    """Rejects an event whose payload has no `stores_involved`, or an empty one."""
    payload = event.payload
    stores = payload.get("stores_involved") if isinstance(payload, dict) else None
    return None if stores else "a transaction event must name the stores_involved"
