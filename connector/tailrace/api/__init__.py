"""The HTTP edge of a worker: Kafka Connect's REST API, the JSON API, metrics and health."""
