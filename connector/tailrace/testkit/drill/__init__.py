"""`tailrace drill`: faults against a staging pipeline, with an outbox and topics of the drill's own, and a verdict."""
