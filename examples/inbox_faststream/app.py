"""Adds up the amounts of each order: a FastStream app with SQLAlchemy that applies every event once.

The sums are wrong as soon as an event is lost or applied twice. Run it with `python -m examples.inbox_faststream.app`.
"""

from __future__ import annotations

import asyncio
import json
import os
from decimal import Decimal

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, KafkaMessage
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tailrace.inbox import Inbox

GROUP = "order-totals"
DATABASE = os.environ.get("SHOP_DB", "postgresql://localhost/shop")

broker = KafkaBroker(os.environ.get("KAFKA", "localhost:9092"))
app = FastStream(broker)
engine = create_async_engine(DATABASE.replace("postgresql://", "postgresql+psycopg://", 1))
inbox = Inbox()


class Base(DeclarativeBase):
    pass


class OrderTotal(Base):
    __tablename__ = "order_totals"
    id: Mapped[str] = mapped_column(primary_key=True)
    events: Mapped[int] = mapped_column(default=0)
    total: Mapped[Decimal] = mapped_column(default=Decimal())


class Order(BaseModel):
    order: str
    amount: Decimal


@broker.subscriber(
    "shop.orders",
    group_id=GROUP,
    auto_offset_reset="earliest",
    isolation_level="read_committed",
    session_timeout_ms=6_000,
    # The offset is committed after the handler; if it raises, the event is read again.
    ack_policy=AckPolicy.NACK_ON_ERROR,
)
async def on_order(order: Order, message: KafkaMessage) -> None:
    event_id = message.headers["id"]
    async with AsyncSession(engine) as session, session.begin(), inbox.once(session, event_id, GROUP) as first:
        if first:
            row = await session.get(OrderTotal, order.order, with_for_update=True)
            if row is None:
                session.add(row := OrderTotal(id=order.order, events=0, total=Decimal()))
            row.events += 1
            row.total += order.amount


@app.on_startup
async def create_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await inbox.create(connection)


@app.after_startup
async def report() -> None:
    print(json.dumps({"event": "reading"}), flush=True)  # noqa: T201 - what examples.run waits for


if __name__ == "__main__":
    asyncio.run(app.run())
