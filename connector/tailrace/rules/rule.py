"""Rules and what they return. A rule is a function that gets an event and returns None, or a text that says what is
wrong with it.

Standard library only, except for the errors: the writer of the outbox imports it into services.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, NamedTuple

from tailrace.errors import Reason, Rejected

TEXT_CHARS = 2000
"""Longer texts of a rule are cut."""
KNOWN_TYPES = 4096
"""How many event types are cached. The database chooses them, so the number is bounded."""


@dataclass(frozen=True, slots=True)
class RuleEvent:
    """The event as rules see it."""

    id: str
    type: str
    aggregate: str
    key: str | None
    payload: Any
    """The payload as Python values; None if it is NULL or not JSON."""
    version: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further columns of the row."""
    raw: bytes | None = None
    """The payload as it is in the outbox."""


Rule = Callable[[RuleEvent], str | None]
Outcome = Literal["violated", "raised", "crashed", "timed_out"]


class Verdict(NamedTuple):
    """Why an event does not pass: the name of the rule, and the rule's text or what went wrong in it."""

    outcome: Outcome
    rule: str
    text: str

    def rejection(self) -> Rejected:
        """Returns the rejection of the event. The text comes behind a colon: it may quote the payload."""
        shown = self.text[:TEXT_CHARS]
        if self.outcome == "violated":
            return Rejected(
                Reason.PERMANENT_FAILURE,
                f"the rule {self.rule} rejects the event: {shown}",
                remedy="Correct the event or the rule, then redrive.",
            )
        if self.outcome == "timed_out":
            return Rejected(
                Reason.PROCESSING_TIMEOUT,
                f"the rule {self.rule} did not finish: {shown}",
                remedy="Make the rule faster, or raise rules.timeout; then redrive.",
            )
        what = "raised an error" if self.outcome == "raised" else "ended its process"
        return Rejected(
            Reason.POISON_MESSAGE, f"the rule {self.rule} {what}: {shown}", remedy="Correct the rule, then redrive."
        )


class RulePatterns:
    """Finds the rules of an event type, by shell patterns (`Order*`); loads no code."""

    def __init__(self, checks: Mapping[str, Sequence[str]]) -> None:
        self._patterns = [(re.compile(fnmatch.translate(text)).match, tuple(names)) for text, names in checks.items()]
        self._known: dict[str, tuple[str, ...]] = {}

    def of_type(self, type_name: str) -> tuple[str, ...]:
        """Returns the names of the rules, each once, in the order of the settings."""
        found = self._known.get(type_name)
        return self._look_for(type_name) if found is None else found

    def _look_for(self, type_name: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(name for matches, names in self._patterns if matches(type_name) for name in names))
        if len(self._known) >= KNOWN_TYPES:
            self._known.clear()
        self._known[type_name] = found
        return found


class RuleSet:
    """Rules by event type, run in this process: by the writer, and by the process that the connector starts."""

    def __init__(self, checks: Mapping[str, Sequence[str]], functions: Mapping[str, Rule]) -> None:
        """`checks` maps patterns to names, and `functions` names to rules."""
        self._patterns = RulePatterns(checks)
        self._functions = functions

    @classmethod
    def of(cls, checks: Mapping[str, Iterable[str | Rule]]) -> RuleSet:
        """Loads the rules that are given by name (`module:function`, or an entry point); raises ConfigError."""
        from tailrace.rules.loading import load, name_of

        named: dict[str, list[str]] = {}
        functions: dict[str, Rule] = {}
        for pattern, rules in checks.items():
            for rule in rules:
                name = rule if isinstance(rule, str) else name_of(rule)
                functions[name] = load(rule) if isinstance(rule, str) else rule
                named.setdefault(pattern, []).append(name)
        return cls(named, functions)

    def of_type(self, type_name: str) -> tuple[str, ...]:
        return self._patterns.of_type(type_name)

    def check(self, event: RuleEvent, before: Callable[[str], None] | None = None) -> Verdict | None:
        """Returns the verdict of the first rule that the event breaks. `before` is called with each rule's name."""
        for name in self._patterns.of_type(event.type):
            if before is not None:
                before(name)
            verdict = run(name, self._functions[name], event)
            if verdict is not None:
                return verdict
        return None

    def require(self, event: RuleEvent, limit: float | None = None) -> None:
        """Raises Rejected if a rule rejects the event, raises an error, or takes longer than `limit` seconds.

        The rules run in the calling thread, which nothing interrupts: `limit` is compared afterwards. So a rule that is
        too slow for the connector is noticed in the service, where the event can still be refused.
        """
        for name in self._patterns.of_type(event.type):
            began = monotonic()
            verdict = run(name, self._functions[name], event)
            took = monotonic() - began
            if verdict is None and limit is not None and took > limit:
                verdict = Verdict("timed_out", name, f"it took {took:.2f} s, and {limit:g} s are allowed")
            if verdict is not None:
                raise verdict.rejection()


def run(name: str, rule: Rule, event: RuleEvent) -> Verdict | None:
    """Runs one rule. Any exception that it raises is a verdict, also SystemExit."""
    try:
        found = rule(event)
    except BaseException as error:  # noqa: BLE001 - a rule is foreign code
        return Verdict("raised", name, f"{type(error).__name__}: {error}"[:TEXT_CHARS])
    if found is None:
        return None
    if not isinstance(found, str) or not found:
        return Verdict(
            "raised", name, f"it returned {type(found).__name__}, not None or a text that says what is wrong"
        )
    return Verdict("violated", name, found[:TEXT_CHARS])
