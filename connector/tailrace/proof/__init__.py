"""Proof: a writer that keeps a ledger, a reader that sees what consumers see, and an oracle that compares the two."""
