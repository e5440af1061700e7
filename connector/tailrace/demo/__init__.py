"""The demo: real servers, two services, their connectors killed twice, and a verdict; what `tailrace demo` shows.

`servers` starts Postgres, MongoDB and Kafka. A `service` is a database with an outbox and a `connector` that tails it:
`orders` on Postgres, `users` on MongoDB. `scene` puts them and their files together, `watcher` is the consumer, `part`
what happens around one service, `play` the plot, `show` what is seen of it, `report` what came of it. `schemas/` and
`topics/` are what a user registers; the folders of the same names at the root of the repository are links to them.
"""
