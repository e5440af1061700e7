"""Runs of a Postgres pipeline."""

from __future__ import annotations

from simulation.checks import InvariantBroken
from simulation.network import HOLD, PAUSE
from simulation.pipeline_run import NOTICED_SECONDS, PipelineRun
from simulation.postgres_client import PostgresDatabase
from simulation.scheduler import Simulation
from tailrace.positions.postgres import LsnPosition, format_lsn


class PostgresRun(PipelineRun):
    """Also checks each flush position that a connector confirms."""

    server: PostgresDatabase

    def make_server(self, simulation: Simulation) -> PostgresDatabase:
        return PostgresDatabase(simulation)

    def prepared(self) -> None:
        self.server.confirmed = self._confirmed

    def _confirmed(self, flush: int) -> None:
        stored = self.oracle.stored
        assert isinstance(stored, LsnPosition | None)
        if stored is None or stored.creating or flush > stored.lsn:
            raise InvariantBroken(f"I6: {format_lsn(flush)} is confirmed, stored is {stored}")


def zombie_run(seed: object, *, trace: bool = False) -> PostgresRun:
    """Two instances and suspended processes: the older one goes on after the newer one has taken over."""
    return PostgresRun(
        seed, rate=0.08, kinds=(PAUSE, HOLD), instances=2, history=[(1, True)] * 60, tail=NOTICED_SECONDS, trace=trace
    )
