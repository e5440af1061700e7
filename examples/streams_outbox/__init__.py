"""Payouts by team, from an outbox with streams and topics."""
