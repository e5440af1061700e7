"""Models of the registered events.

Written by `tailrace schemas models`: run it again instead of editing this.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class OrderChanged(BaseModel):
    """An order has a new revision; its amount replaces the one before."""

    order: str
    revision: int
    amount: float
    currency: str


class OrderPlaced(BaseModel):
    """A customer placed an order: its first revision."""

    order: str
    revision: Literal[1]
    amount: float
    currency: str
