"""The demo: real servers, a writer, the connector killed twice, and a verdict; what `tailrace demo` shows.

`servers` starts Postgres and Kafka, `scene` puts files and the connector between them, `watcher` is the consumer,
`play` is the plot, `show` what is seen of it, `report` what came of it. `schemas/` and `topics/` are what a user
registers; the folders of the same names at the root of the repository are links to them.
"""
