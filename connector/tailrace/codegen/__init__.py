"""Documents and code generated from schemas: AsyncAPI and pydantic models. Never on the hot path."""
