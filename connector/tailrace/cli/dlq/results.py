"""Reports the result for each dead letter of a command, as text or JSON, and counts them."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field

from tailrace.cli.dlq.view import printable
from tailrace.cli.output import emit_json, say
from tailrace.dlq.dead_letter import DeadLetter
from tailrace.dlq.redrive import RedriveFailure, RedriveItem


@dataclass(slots=True)
class ResolutionReport:
    """Prints and counts results."""

    as_json: bool
    counts: Counter[str] = field(default_factory=Counter)

    def report(self, letter: DeadLetter, outcome: str, text: str = "", **more: object) -> None:
        self.counts[outcome] += 1
        if self.as_json:
            emit_json({"letter": str(letter.id), "event_id": letter.event_id, "outcome": outcome, **more})
        else:
            say(printable(f"{letter.id} {outcome}{text}"))

    def sent(self, done: tuple[list[RedriveItem], list[RedriveFailure]]) -> None:
        """Reports a committed batch."""
        for letter, resolution, record in done[0]:
            place = f" to {record.topic}" if record else ""
            action: str = resolution.action
            if resolution.new_id:
                place, action = f": {resolution.new_id}", "written as new"
            self.report(letter, action, place, **resolution.to_json())
        for (letter, _, _), why in done[1]:
            self.failed(letter, "permanent_failure", why.what, why.remedy)

    def failed(self, letter: DeadLetter, reason: str, explanation: str, remedy: str) -> None:
        text = f": {reason}: {explanation}" + (f" Remedy: {remedy}" if remedy else "")
        self.report(letter, "failed", text, reason=reason, explanation=explanation, remedy=remedy)

    def end(self) -> int:
        """Prints the summary; returns the exit code."""
        if self.as_json:
            emit_json({"summary": dict(self.counts)})
        else:
            say(", ".join(f"{number} {name}" for name, number in self.counts.items()) or "Nothing to do.")
        sys.stdout.flush()
        return 1 if self.counts["failed"] else 0
