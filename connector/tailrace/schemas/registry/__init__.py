"""Client of a Confluent-compatible schema registry, a cache of its schemas, and the registration of a folder."""
