"""One row for each team: how many payouts it has, and what they come to."""

from __future__ import annotations

import os

from pydantic import BaseModel

from tailrace.projections import Event, PostgresEffects, PostgresStore, Projection, projection_app


class Payout(BaseModel):
    team_id: str
    change_cents: int


TABLES = "CREATE TABLE IF NOT EXISTS teams (id text PRIMARY KEY, payouts integer NOT NULL, cents bigint NOT NULL)"
DATABASE = os.environ.get("SHOP_DB", "postgresql://localhost/shop")
app = projection_app("team-payouts", broker=os.environ.get("KAFKA", "kafka://localhost:9092"))
payouts = Projection(app, "STREAM_PAYOUT", store=PostgresStore(DATABASE, schema="team_payouts", tables=TABLES))

ADD = """INSERT INTO teams AS t VALUES (%s, %s, %s)
ON CONFLICT (id) DO UPDATE SET payouts = t.payouts + excluded.payouts, cents = t.cents + excluded.cents"""


# Not idempotent by themselves: applied twice, they would count twice.
@payouts.on("payout.generated", model=Payout)
async def generated(event: Event, effects: PostgresEffects) -> None:
    await effects.execute(ADD, (event.data.team_id, 1, event.data.change_cents))


@payouts.on("payout.corrected", model=Payout)
async def corrected(event: Event, effects: PostgresEffects) -> None:
    await effects.execute(ADD, (event.data.team_id, 0, event.data.change_cents))
