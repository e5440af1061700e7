"""Compares the projection with the outbox. The fault of this example: connector and worker are killed."""

from __future__ import annotations

from typing import Any

import psycopg

from examples.example import Example, Rows
from examples.streams_outbox.service import Payouts
from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.workload.writer import WorkloadWriter

EXPECTED = """
    SELECT payload->>'team_id', count(*) FILTER (WHERE topic = 'payout.generated'),
           sum((payload->>'change_cents')::bigint)
    FROM outbox_events GROUP BY 1
"""
PROJECTED = "SELECT id, payouts, cents FROM team_payouts.teams"


class StreamsOutbox(Example[Payouts]):
    SERVICE = Payouts
    FAULT = "connector and worker killed (SIGKILL) while events arrive, and started again"

    @classmethod
    def join(cls, environment: DemoEnvironment) -> None:
        servers = environment.servers
        environment.replace_services([Payouts(servers.kafka, "", servers.postgres, ours=True)])

    def environment(self) -> dict[str, str]:
        return {"SHOP_DB": self.service.url}

    def rows(self) -> Rows:
        return self._query(PROJECTED)

    def expected(self) -> Rows:
        return self._query(EXPECTED)

    def _query(self, query: Any) -> Rows:  # noqa: ANN401 - psycopg wants a literal; these two are
        with psycopg.connect(self.service.dsn) as connection:
            found = connection.execute(query)
            return {team: f"{payouts} payouts, {cents / 100:,.2f} EUR" for team, payouts, cents in found}

    def disturb(self, earlier: WorkloadWriter) -> None:
        for process in (self.service.connector, self.worker):
            process.kill()
            process.start()
