"""The MongoDB source: existing documents, then the change stream."""
