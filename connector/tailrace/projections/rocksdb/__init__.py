"""The RocksDB store: an embedded database with column families, and an undo log for chains that roll back."""
