"""The MongoDB stores of projections: `MongoStore`, and the mirror of a topic."""
