"""An embedded outbox as a source of committed rows."""
