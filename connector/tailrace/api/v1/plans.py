"""Replay plans that the worker keeps for a while, so that a client can name a plan by its id."""

from __future__ import annotations

import json
from typing import Any

from tailrace.errors import ConfigError

MOST = 100
KEPT_BYTES = 8_000_000
MAX_ID = 100


class Plans:
    """The last plans that were made over HTTP."""

    def __init__(self) -> None:
        self._plans: dict[str, bytes] = {}

    def keep(self, plan: Any) -> None:  # noqa: ANN401 - the result of a command
        """Keeps a plan, and removes the path of its file on the worker, which the client cannot use."""
        if not isinstance(plan, dict) or not isinstance(plan.get("id"), str):
            return
        plan.pop("file", None)
        self._plans[plan["id"]] = json.dumps(plan, ensure_ascii=False).encode()
        while len(self._plans) > MOST or (len(self._plans) > 1 and sum(map(len, self._plans.values())) > KEPT_BYTES):
            del self._plans[next(iter(self._plans))]

    def resolved(self, given: bytes) -> bytes:
        """Returns a plan that a client gave as a JSON object or as the id of a plan."""
        try:
            value = json.loads(given)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return given
        if not isinstance(value, str) or len(value) > MAX_ID:
            raise ConfigError(
                "the plan is neither a JSON object nor the id of a plan", remedy="Give what `replay plan` returned."
            )
        if value not in self._plans:
            raise ConfigError(
                f"the worker has no plan {value!r}",
                why=f"A worker keeps its last {MOST} plans, and none after a restart.",
                remedy="Give the whole plan as `replay plan` returned it, or make a new one.",
            )
        return self._plans[value]
