"""The projection of `user_cards`: one card for each user, with markers of processed events and version checks."""

from __future__ import annotations

from examples.user_cards.app import app

__all__ = ["app"]
