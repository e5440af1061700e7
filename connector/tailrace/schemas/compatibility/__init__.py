"""Which changes of a schema its readers and writers can live with."""
