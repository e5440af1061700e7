"""One service's part in the play: its writer, its consumer, what happened to its connector, and how it is judged."""

from __future__ import annotations

import time

from tailrace.demo.connector import Connector
from tailrace.demo.latency import Outage, measure, percentile
from tailrace.demo.report import Result
from tailrace.demo.service import Service
from tailrace.demo.show import Standing
from tailrace.demo.watcher import Watcher
from tailrace.proof.oracle import Outcome, backward, judge
from tailrace.proof.reader import read_all, sightings, stored_positions
from tailrace.proof.writer import Mix

KEYS = 200
MIX = Mix(rollback=0.1, invalid=0.02)
RECENT_JOURNEYS = 300


class Part:
    """`close` ends the writer and the watcher, wherever they are."""

    def __init__(self, service: Service, *, seed: int) -> None:
        self.service = service
        self.writer = service.writer(seed=seed, keys=KEYS, mix=MIX)
        self.watcher = Watcher(service.bootstrap, service.topic, service.letters, service.tell)
        self.outages: list[Outage] = []
        self.state = "new"
        self.committed = 0
        self._killed_ms = 0.0
        self._counted = self._rolled_back = 0

    @property
    def connector(self) -> Connector:
        return self.service.connector

    def require_health(self) -> None:
        """Raises what went wrong in a thread or in a connector that should be running."""
        for error in (self.writer.error, self.watcher.error):
            if error is not None:
                raise error
        if self.state == "running" and not self.connector.ready:
            raise self.connector.failure(f"the connector of {self.service.NAME} is not running")

    def kill(self) -> int:
        """The pid that was."""
        pid = self.connector.pid
        self._killed_ms = time.time() * 1000
        self.connector.kill()
        self.state = "restarting"
        return pid

    def is_running(self) -> bool:
        """Whether the connector has come up; from then on it is held to it."""
        if not self.connector.ready:
            return False
        if self.state == "restarting":
            self.outages.append(Outage(self._killed_ms, time.time() * 1000))
        self.state = "running"
        return True

    def has_recovered(self) -> bool:
        """Whether an event that was committed after the last restart has arrived."""
        journeys = self.watcher.journeys
        return bool(journeys) and journeys[-1].committed_ms > self.outages[-1].running_ms

    def has_caught_up(self) -> bool:
        self.count()
        return len(self.watcher.ids) >= self.committed

    def stop_connector(self) -> None:
        self.state = "stopped"
        self.connector.stop()

    def judge(self) -> Result:
        """Reads all of Kafka from the beginning and compares it with the writer's ledger."""
        service = self.service
        published = sightings(read_all(service.bootstrap, [service.topic]))
        letters = sightings(read_all(service.bootstrap, [service.letters]))
        verdict = judge(self.writer.ledger, published, letters, in_table=service.in_outbox())
        positions = stored_positions(service.bootstrap, service.pipeline, service.offsets)
        verdict.positions = backward([position.progress for position in positions])
        if positions:
            verdict.positions += service.astray(positions[-1])
        latency = measure(self.watcher.journeys, self.outages)
        return Result(service.NAME, service.DATABASE, verdict, latency, self.outages)

    def standing(self) -> Standing:
        self.count()
        watcher = self.watcher
        recent = [journey.millis for journey in watcher.journeys[-RECENT_JOURNEYS:]]
        return Standing(
            name=self.service.NAME,
            connector=self.state,
            committed=self.committed,
            rolled_back=self._rolled_back,
            arrived=len(watcher.journeys) - watcher.letters,
            letters=watcher.letters,
            p50_ms=percentile(recent, 0.5),
        )

    def count(self) -> None:
        """Takes in what the ledger has grown by."""
        for entry in self.writer.ledger[self._counted :]:
            self._counted += 1
            if entry.outcome is Outcome.ROLLED_BACK:
                self._rolled_back += 1
            else:
                self.committed += 1

    def close(self) -> None:
        self.watcher.stop()
        self.writer.stop()
