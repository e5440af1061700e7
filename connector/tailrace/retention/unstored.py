"""Confirmations that a dry run has read and does not store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.archive.pinned_rows import no_room
from tailrace.retention.confirmations import Confirmation
from tailrace.retention.state import RetentionState
from tailrace.temporary_table import TemporaryTable


class UnstoredConfirmations:
    """Adds what it is given to the stored confirmations, in a temporary file."""

    def __init__(self, stored: RetentionState) -> None:
        self._stored = stored
        self._new = TemporaryTable("id TEXT, ms INTEGER, PRIMARY KEY (id, ms)", no_room)

    def offsets(self, topic: str) -> dict[int, int]:
        return self._stored.offsets(topic)

    def schedule(
        self, topic: str, confirmations: Sequence[Confirmation], offsets: Mapping[int, int], *, restart: bool
    ) -> int:
        texts = self._stored.canonical([each.event_id for each in confirmations])
        named = zip(texts, confirmations, strict=True)
        self._new.add((text, each.confirmed_ms) for text, each in named if text is not None)
        return sum(text is not None for text in texts)

    def confirmed(self, ids: Sequence[str]) -> dict[str, int]:
        found = self._stored.confirmed(ids)
        for event_id in ids:
            ((at_ms,),) = self._new.select("SELECT max(ms) FROM rows WHERE id = ?", event_id)
            if at_ms is not None:
                found[event_id] = max(int(at_ms), found.get(event_id, 0))
        return found

    def close(self) -> None:
        self._new.close()
