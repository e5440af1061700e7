"""The core of projections: handlers, the store protocol, applying batches. No Faust and no driver."""
