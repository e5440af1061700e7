"""One service's part in the play: its writer, its connector, its consumer, and how it is judged."""

from __future__ import annotations

from tailrace.testkit.demo.consumer import DemoConsumer
from tailrace.testkit.demo.display import PipelineStatus
from tailrace.testkit.demo.latency import measure, percentile
from tailrace.testkit.demo.process import DemoProcess
from tailrace.testkit.demo.report import Result
from tailrace.testkit.demo.service import Service
from tailrace.testkit.oracle import ConsumedRecord, WriteOutcome, backward_positions, check_delivery
from tailrace.testkit.topic_reader import consumed_records, read_all, stored_positions
from tailrace.testkit.workload.writer import Mix

KEYS = 200
MIX = Mix(rollback=0.1, invalid=0.02)
RECENT_JOURNEYS = 300


class ServiceRun(DemoProcess):
    """`close` ends the writer and the watcher, wherever they are."""

    def __init__(self, service: Service, *, seed: int) -> None:
        super().__init__(f"{service.NAME} connector", service.connector, f"tailing {service.outbox}")
        self.service = service
        self.writer = service.writer(seed=seed, keys=KEYS, mix=MIX)
        self.watcher = DemoConsumer(service.bootstrap, service.topic, service.letters, service.tell)
        self.committed = 0
        self.published: list[ConsumedRecord] = []
        """Everything on the topic, once it is judged."""
        self._counted = self._rolled_back = 0

    def require_health(self) -> None:
        """Raises what went wrong in a thread or in a connector that should be running."""
        for error in (self.writer.error, self.watcher.error):
            if error is not None:
                raise error
        super().require_health()

    def has_recovered(self) -> bool:
        """Whether an event that was committed after the last restart has arrived."""
        journeys = self.watcher.journeys
        return bool(journeys) and journeys[-1].committed_ms > self.outages[-1].running_ms

    def has_caught_up(self) -> bool:
        self.count()
        return len(self.watcher.ids) >= self.committed

    @property
    def arrived(self) -> int:
        """Events on the topic, as far as the consumer has seen."""
        return len(self.watcher.journeys) - self.watcher.letters

    def judge(self) -> Result:
        """Reads all of Kafka from the beginning and compares it with the writer's ledger."""
        service = self.service
        self.published = consumed_records(read_all(service.bootstrap, [service.topic]))
        letters = consumed_records(read_all(service.bootstrap, [service.letters]))
        verdict = check_delivery(self.writer.written, self.published, letters, in_table=service.in_outbox())
        positions = stored_positions(service.bootstrap, service.pipeline, service.offsets)
        verdict.positions = backward_positions([position.progress for position in positions])
        if positions:
            verdict.positions += service.astray(positions[-1])
        latency = measure(self.watcher.journeys, self.outages)
        return Result(service.NAME, service.DATABASE, verdict, latency, self.outages)

    def standing(self) -> PipelineStatus:
        self.count()
        watcher = self.watcher
        recent = [journey.millis for journey in watcher.journeys[-RECENT_JOURNEYS:]]
        return PipelineStatus(
            name=self.service.NAME,
            connector=self.state,
            committed=self.committed,
            rolled_back=self._rolled_back,
            arrived=self.arrived,
            letters=watcher.letters,
            p50_ms=percentile(recent, 0.5),
        )

    def count(self) -> None:
        """Takes in what the ledger has grown by."""
        for entry in self.writer.written[self._counted :]:
            self._counted += 1
            if entry.outcome is WriteOutcome.ROLLED_BACK:
                self._rolled_back += 1
            else:
                self.committed += 1

    def close(self) -> None:
        self.watcher.stop()
        self.writer.stop()
