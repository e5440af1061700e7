"""Real servers, workloads and an oracle: what the demo, the tests and the benchmarks share."""
