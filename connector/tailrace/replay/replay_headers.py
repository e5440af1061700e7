"""The processor of a replay: marks its records with headers. Pure.

Decoding, routing and validation are those of the pipeline. For shadow topics only the topic name of the record changes,
so an event is validated as for its original topic.
"""

from __future__ import annotations

from tailrace.event import Headers, Record
from tailrace.pipeline.processor import EventProcessor
from tailrace.state.rewind_marker import HEADER, SHADOW


def replayed(processor: EventProcessor, replay_id: str, *, suffix: str = "") -> EventProcessor:
    """Returns the processor for a replay. It parks nothing: what cannot be published becomes a dead letter."""

    # The name of a shadow topic may also follow from the pipeline's own template: a header tells them apart.
    added: Headers = [(HEADER, replay_id), *([(SHADOW, suffix)] if suffix else [])]

    def marked(made: Record, _: object) -> Record:
        return made._replace(topic=made.topic + suffix, headers=[*made.headers, *added])

    return processor.decorated(marked, marked, parks=False)
