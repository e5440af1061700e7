"""The business rules of a pipeline: prepared for many events at once, applied after an event is validated."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.config.rules import RuleSettings
from tailrace.errors import LayoutMismatch, Rejected
from tailrace.event import OutboxEvent, Row
from tailrace.outbox.layouts import Layout
from tailrace.rules.runner import RuleRunner
from tailrace.schemas.validation import ValidatedPayload

Validate = Callable[[OutboxEvent, str], ValidatedPayload]


class PipelineRules:
    """Created once per process; used by one thread. It starts a process when it is `ready`."""

    def __init__(self, settings: RuleSettings) -> None:
        self._runner = RuleRunner(settings.checks, limit=settings.timeout, folder=settings.folder)
        self._verdicts: dict[tuple[object, ...], Rejected | None] = {}

    def ready(self) -> None:
        """Loads the rules. Raises ConfigError if one cannot be loaded."""
        self._runner.start()

    def close(self) -> None:
        self._runner.close()

    def preparing(self, layout: Layout) -> Callable[[list[Row], Callable[[], bool]], bool]:
        """Returns the function that runs the rules on the rows of a chunk: see `EventProcessor.prepare`."""

        def prepare(rows: list[Row], going: Callable[[], bool]) -> bool:
            of_type = self._runner.of_type
            events: list[OutboxEvent] = []
            for row in rows:
                try:
                    event = layout.read(row)
                except (Rejected, LayoutMismatch):
                    continue  # the processor reads it again, and handles it
                if of_type(event.type):
                    events.append(event)
            self._verdicts = {}
            if events:
                found = self._runner.check(events, going)
                if found is None:
                    return False
                self._verdicts = dict(zip(map(_identity, events), found, strict=True))
            return True

        return prepare

    def after(self, validate: Validate) -> Validate:
        """Returns a validator that also applies the rules. An event that was not prepared is checked alone."""
        of_type = self._runner.of_type

        def checked(event: OutboxEvent, topic: str) -> ValidatedPayload:
            content = validate(event, topic)
            if of_type(event.type):
                self._require(event)
            return content

        return checked

    def _require(self, event: OutboxEvent) -> None:
        identity = _identity(event)
        if identity in self._verdicts:
            rejected = self._verdicts[identity]
        else:
            (rejected,) = self._runner.check([event]) or (None,)
        if rejected is not None:
            raise rejected


def _identity(event: OutboxEvent) -> tuple[object, ...]:
    """Returns the values on which verdicts depend: a redriven event may have another payload at the same position."""
    return event.position, event.id, event.type, event.version, event.payload
