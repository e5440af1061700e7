"""The Faust part of projections: app, consumer, worker process, stall detection."""
