"""The inbox: processed-event markers for any consumer, written in the consumer's own transaction (`Inbox`)."""

from tailrace.inbox.inbox import Inbox
from tailrace.inbox.once import Once

__all__ = ["Inbox", "Once"]
