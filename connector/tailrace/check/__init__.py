"""`tailrace check`: preflight checks of settings, database and Kafka, and the rules they apply."""
