"""An AsyncAPI 3 document of what goes on Kafka."""
