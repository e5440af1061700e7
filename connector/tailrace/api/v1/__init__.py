"""The JSON API of a worker: the operations of the command line, jobs, and the history of an event."""
