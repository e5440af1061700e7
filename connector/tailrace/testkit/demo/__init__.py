"""The demo: real servers, two services, a projection, all of them killed, and a verdict; what `tailrace demo` shows.

`servers` starts Postgres, MongoDB and Kafka. A `service` is a database with an outbox and a `connector` that tails it:
`orders` on Postgres, `users` on MongoDB. `order_summary` is a projection as a user would write it, `summary` its
process and its table. `scene` puts them and their files together. A `performer` is a process in the play: `part` what
happens around one service, with a `watcher` as its consumer, `applying` around the projection, which is judged by the
`fold` of its topic. `play` is the plot, `show` what is seen of it, `report` what came of it. `schemas/` and `topics/`
are what a user registers; the folders of the same names at the root of the repository are links to them.
"""
