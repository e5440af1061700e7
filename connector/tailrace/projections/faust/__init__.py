"""How a projection app reads Kafka through Faust."""
