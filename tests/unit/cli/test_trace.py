"""Which stores of projections `tailrace trace` can ask."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from tailrace.cli.trace import _stores
from tailrace.errors import ConfigError
from tailrace.projections import MongoStore, PostgresStore, Projection, RocksStore, projection_app


def test_a_store_that_only_its_worker_can_open_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("shop_projections")
    made.app = app = projection_app("shop", broker="kafka://localhost:1")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_projections", made)
    Projection(app, "orders", store=PostgresStore("postgresql://localhost/shop", schema="orders"), name="orders")
    Projection(app, "users", store=MongoStore("mongodb://localhost/?replicaSet=rs0", "users"), name="users")
    assert len(_stores("shop_projections:app")) == 2
    Projection(app, "blocks", store=RocksStore(tmp_path / "index", families=["a"]), name="blocks")
    with pytest.raises(ConfigError, match=r"markers of blocks cannot be read: its store is RocksStore"):
        _stores("shop_projections:app")
