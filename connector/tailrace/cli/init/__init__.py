"""`tailrace init`: writes a first pipeline."""
