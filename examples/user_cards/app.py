"""One card for each user: e-mail, city and the number of changes. Deleting a user deletes the card."""

from __future__ import annotations

import os

from pydantic import BaseModel

from tailrace.projections import Event, MongoEffects, MongoStore, Projection, Versions, projection_app


class Address(BaseModel):
    city: str


class UserRegistered(BaseModel):
    user: str
    email: str
    address: Address


class UserChanged(UserRegistered):
    revision: int


SERVER = os.environ.get("SHOP_MONGO", "mongodb://localhost:27017/?replicaSet=rs0")
app = projection_app("user-cards", broker=os.environ.get("KAFKA", "kafka://localhost:9092"))
# Events have the header `entity_version`: an event that is not newer than its user's last one is skipped.
users = Projection(
    app, "shop.users", store=MongoStore(SERVER, "shop", collections={"user_cards": []}), versions=Versions()
)


@users.on("UserRegistered", model=UserRegistered)
async def registered(event: Event, effects: MongoEffects) -> None:
    user = event.data
    effects.upsert("user_cards", {"_id": user.user}, {"email": user.email, "city": user.address.city, "changes": 0})


@users.on("UserChanged", model=UserChanged)
async def changed(event: Event, effects: MongoEffects) -> None:
    user = event.data
    news = {"$set": {"email": user.email, "city": user.address.city}, "$inc": {"changes": 1}}
    await effects.collection("user_cards").update_one({"_id": user.user}, news)


@users.on("UserDeleted", deletes=True)
async def deleted(event: Event, effects: MongoEffects) -> None:
    effects.delete("user_cards", {"_id": event.entity})
