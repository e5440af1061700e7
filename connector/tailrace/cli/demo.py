"""`tailrace demo`: runs connectors and a projection on real servers, kills them, and checks the result."""

from __future__ import annotations

import random
import sys
from contextlib import closing

import typer

from tailrace.cli.output import emit_json
from tailrace.cli.stack import PostgresVersion
from tailrace.errors import install_remedy
from tailrace.testkit.demo.display import display_for
from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.demo.scenario import Scenario, keep_running


def demo(
    seconds: int = typer.Option(15, "--seconds", min=2, max=3600, help="How long the services write."),
    keep: bool = typer.Option(False, "--keep", help="Keep everything running afterwards, until Ctrl-C."),
    seed: int | None = typer.Option(None, "--seed", min=0, help="Repeat the events of an earlier run."),
    postgres: PostgresVersion = typer.Option(PostgresVersion.V16, "--postgres", help="The version of Postgres."),
    as_json: bool = typer.Option(
        False, "--json", help="Print the verdict as one JSON object; everything else goes to stderr."
    ),
) -> int:
    """See it work: real servers, two connectors killed twice, a projection killed once, and a verdict.

    Starts its own Postgres, MongoDB and Kafka (the first start downloads Kafka: 43 MB). One service writes orders to
    Postgres, another writes users to MongoDB; a connector publishes each outbox, and a projection applies the orders.
    Kills the connectors twice and the projection once with SIGKILL. Then compares the committed events with those on
    the topics, and those on the topic with those applied. The exit code is 1 if an event is missing, duplicated, out of
    order or should not be there. Everything is removed at the end.

    \b
    Examples:
      tailrace demo
      tailrace demo --keep
      tailrace demo --seconds 60 --postgres 18
      tailrace demo --json --seed 7
    """
    chosen = random.randrange(10_000) if seed is None else seed  # noqa: S311 - a workload, not a secret
    with (
        closing(display_for(sys.stderr if as_json else sys.stdout)) as display,
        DemoEnvironment(postgres.value) as environment,
    ):
        environment.open(display.busy)
        display.note(f"{environment.description()}; seed {chosen}")
        if not environment.projections:
            display.note(f"no projection: Faust is not installed. {install_remedy('faust')}")
        with closing(Scenario(environment, display, writing_seconds=seconds, seed=chosen)) as scenario:
            report = scenario.run()
        if as_json:
            # The drawing must end before the object is printed to the same terminal.
            display.close()
            emit_json(report.as_json())
        else:
            display.report(report)
        if keep:
            keep_running(environment, display, seed=chosen)
    return report.exit_code
