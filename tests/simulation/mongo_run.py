"""Runs of a MongoDB pipeline."""

from __future__ import annotations

from simulation.mongo import MongoDatabase
from simulation.pipeline_run import PipelineRun
from simulation.scheduler import Simulation


class MongoRun(PipelineRun):
    server: MongoDatabase

    def make_server(self, simulation: Simulation) -> MongoDatabase:
        return MongoDatabase(simulation)
