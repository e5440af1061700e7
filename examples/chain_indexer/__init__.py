"""An indexer of a chain with forks: one atomic batch per block, and rollbacks."""
