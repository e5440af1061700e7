"""The consumer of app.py as an example that can be run."""

from __future__ import annotations

from examples.inbox_example import InboxExample


class InboxKafka(InboxExample):
    pass
