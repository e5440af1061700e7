"""A mempool whose accepted transactions are mirrored in MongoDB, from an embedded outbox."""
