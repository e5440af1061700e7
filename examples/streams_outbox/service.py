"""The payouts service: writes a payout and its event in one transaction, into a table with streams and topics."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg

from tailrace.outbox import Outbox
from tailrace.outbox.ddl import layout_ddl
from tailrace.testkit.demo.orders import Orders
from tailrace.testkit.workload.orders import OrdersWriter, ids_in_table
from tailrace.testkit.workload.writer import Mix, WorkloadEvent, WorkloadWriter

SCHEMAS = Path(__file__).parent / "schemas"
TOPICS = Path(__file__).parent / "topics"
STREAM = "STREAM_PAYOUT"
TEAMS = 4
# Validates with the schemas of the connector: an invalid payload fails in the service's own transaction.
outbox = Outbox(layout="streams", table="public.outbox_events", schemas=SCHEMAS, topic=STREAM)

_PAYOUTS = "CREATE TABLE payouts (id text PRIMARY KEY, team_id text NOT NULL, amount_cents integer NOT NULL);"
_PIPELINE = """\
# The payouts' pipeline. The column `topic` has an event's type and subject, by which a rule finds its Kafka topic.
pipeline: {pipeline}

source:
  postgres: {url}
  table: public.outbox_events

outbox:
  layout: streams
  columns: {{key: payload#/team_id}}    # the events of a team stay in order

schemas: {{folder: {schemas}}}
topics: {{folder: {topics}}}

kafka:
  bootstrap: {bootstrap}
"""


class PayoutsWriter(OrdersWriter):
    ENTITY = "payout"

    def _write(self, event: WorkloadEvent) -> None:
        connection = self._connected()
        team = f"team-{int(event.key.rpartition('-')[2]) % TEAMS}"
        amount = self._random.randint(1_000, 99_999)
        before = connection.execute("SELECT amount_cents FROM payouts WHERE id = %s", (event.key,)).fetchone()
        connection.execute(
            "INSERT INTO payouts VALUES (%s, %s, %s) "
            "ON CONFLICT (id) DO UPDATE SET amount_cents = excluded.amount_cents",
            (event.key, team, amount),
        )
        change = amount - (before[0] if before else 0)
        payout = {"payout_id": event.key, "team_id": team, "amount_cents": amount, "change_cents": change}
        outbox.add(connection, "payout.corrected" if before else "payout.generated", payout, id=event.id)


class Payouts(Orders):
    NAME = "payouts"

    def create(self) -> None:
        super().create()
        with psycopg.connect(self.dsn) as connection:
            connection.execute(_PAYOUTS + layout_ddl("streams", self.outbox))  # type: ignore[call-overload]

    def pipeline_text(self) -> str:
        return _PIPELINE.format(
            pipeline=self.pipeline,
            url=json.dumps(self.url),
            schemas=json.dumps(str(SCHEMAS)),
            topics=json.dumps(str(TOPICS)),
            bootstrap=self.bootstrap,
        )

    def writer(self, *, seed: int, keys: int, mix: Mix) -> WorkloadWriter:
        return PayoutsWriter(self.dsn, seed=seed, keys=keys, mix=mix)

    def in_outbox(self) -> set[str]:
        return ids_in_table(self.dsn, "outbox_events")

    @property
    def outbox(self) -> str:
        return "public.outbox_events"
