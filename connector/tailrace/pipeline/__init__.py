"""The pipeline: the loop, the steps for each event, and the batch that one Kafka transaction holds."""
