"""`tailrace demo`: see it work on this machine, with servers of its own, and judge it."""

from __future__ import annotations

import random
import sys
from contextlib import closing

import typer

from tailrace.cli.output import emit_json
from tailrace.cli.stack import Version
from tailrace.errors import install_remedy
from tailrace.testkit.demo.display import display_for
from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.demo.keep_running import keep_running
from tailrace.testkit.demo.scenario import Scenario


def demo(
    seconds: int = typer.Option(15, "--seconds", min=2, max=3600, help="How long to write."),
    keep: bool = typer.Option(False, "--keep", help="Leave everything running afterwards, until Ctrl-C."),
    seed: int | None = typer.Option(None, "--seed", min=0, help="Write the same events as an earlier run."),
    postgres: Version = typer.Option(Version.V16, "--postgres", help="The version of Postgres."),
    as_json: bool = typer.Option(False, "--json", help="Print the verdict as one JSON object, the rest to stderr."),
) -> int:
    """See it work: real servers, two connectors killed twice, a projection killed once, and a verdict.

    Starts a Postgres, a MongoDB and a Kafka of its own (the first time fetches Kafka: 43 MB), runs a connector beside
    a service that writes orders to Postgres and another beside one that writes users to MongoDB, and a projection of
    the orders behind them. Kills the connectors twice and the projection once with SIGKILL, and compares what was
    committed with what consumers see, and what is on the topic with what was applied. The exit code is 1 if an event is
    missing, duplicated, out of order or should not be there. Nothing is left behind.

    \b
    Examples:
      tailrace demo
      tailrace demo --keep
      tailrace demo --seconds 60 --postgres 18
      tailrace demo --json --seed 7
    """
    chosen = random.randrange(10_000) if seed is None else seed  # noqa: S311 - a workload, not a secret
    with closing(display_for(sys.stderr if as_json else sys.stdout)) as show, DemoEnvironment(postgres.value) as scene:
        scene.open(show.busy)
        show.note(f"{scene.description()}; seed {chosen}")
        if not scene.projections:
            show.note(f"no projection: Faust is not installed. {install_remedy('faust')}")
        with closing(Scenario(scene, show, writing_seconds=seconds, seed=chosen)) as play:
            report = play.run()
        if as_json:
            # The same terminal may show both: first the drawing ends, then the object comes.
            show.close()
            emit_json(report.as_json())
        else:
            show.report(report)
        if keep:
            keep_running(scene, show, seed=chosen)
    return report.exit_code
