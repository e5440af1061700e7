"""The example's documents, settings and metrics, without servers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import bson
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from tailrace.embedded import Drainer, EmbeddedOutbox, Entry
from tailrace.embedded.drainer import DrainedBatch

FIELDS = {
    *("_id", "tx_type", "tx_version", "sender_address", "contract_address", "nonce", "arrived_at", "inserted_at"),
    *("max_fee", "tip", "resource_bounds", "signature", "calldata", "class_hash", "compiled_class_hash"),
    *("constructor_calldata", "contract_address_salt", "entry_point_selector", "paid_fee_on_l1", "raw_transaction"),
    *("chain_id", "status", "charge_fee"),
}
BOUNDS = {
    *("l1_gas_max_amount", "l1_gas_max_price", "l2_gas_max_amount", "l2_gas_max_price"),
    *("l1_data_gas_max_amount", "l1_data_gas_max_price"),
}
FLAGS = {
    "enabled": ("true", True),
    "mongodb-uri": ("mongodb://db", "mongodb://db"),
    "database": ("mine", "mine"),
    "collection": ("txs", "txs"),
    "batch-size": ("200", 200),
    "flush-interval-ms": ("500", 500),
    "pool-size": ("3", 3),
    "connect-timeout-ms": ("200", 200),
    "retention-secs": ("60", 60),
    "retention-tick-secs": ("5", 5),
    "strict-outbox": ("false", False),
    "retry-backoff-ms": ("10", 10),
    "retry-backoff-max-ms": ("20", 20),
}
METRICS = {
    *("transactions_written", "transactions_deleted", "write_latency_seconds", "mongodb_write_errors"),
    *("batch_size", "outbox_write_errors", "outbox_size", "retry_count"),
}


def entry(seed: int, number: int) -> Entry:
    from examples.transaction_mirror.transactions import encode, transaction

    found = transaction(seed, number)
    return Entry(number, found.hash.encode(), encode(found), 0)


def test_every_type_has_a_document_with_all_fields() -> None:
    from examples.transaction_mirror.document import document_of
    from examples.transaction_mirror.oracle import differences
    from examples.transaction_mirror.transactions import TYPES, decode, transaction

    assert len(FIELDS) == 23
    seen: set[tuple[str, str]] = set()
    documents = []
    for number in range(300):
        raw = entry(1, number)
        document: dict[str, Any] = bson.decode(bson.encode(document_of(raw, "sepolia")))
        assert document.keys() == FIELDS
        seen.add((document["tx_type"], document["tx_version"]))
        assert decode(bytes(document["raw_transaction"])) == transaction(1, number, decode(raw.raw).arrived_ms)
        is_v3 = document["tx_version"] == "V3"
        assert (document["tip"] is not None, document["resource_bounds"] is not None) == (is_v3, is_v3)
        if is_v3:
            assert document["resource_bounds"].keys() == BOUNDS
        documents.append(document)
    assert seen == {(kind, version) for kind, versions in TYPES.items() for version in versions}
    assert differences(documents, 1, "sepolia") == []
    documents[3]["tip"] = 5
    documents[4]["raw_transaction"] = entry(1, 5).raw
    del documents[6]["calldata"]
    assert len(differences(documents, 1, "sepolia")) == 3


def settings(*flags: str, **environ: str) -> Any:
    from examples.transaction_mirror.settings import add_flags, settings_of

    parser = argparse.ArgumentParser()
    add_flags(parser, environ)
    return settings_of(parser.parse_args(flags), "sepolia", parser)


def test_defaults() -> None:
    found = settings()
    assert (found.enabled, found.strict_outbox) == (False, True)
    assert (found.database, found.collection) == ("madara_sepolia", "mempool_transactions")
    assert (found.batch_size, found.flush_interval_ms, found.pool_size) == (100, 1000, 10)
    assert found.connect_timeout_ms == 10_000
    assert (found.retention_secs, found.retention_tick_secs) == (86_400, 300)
    assert (found.retry_backoff_ms, found.retry_backoff_max_ms) == (1000, 60_000)


def test_flags_and_variables_and_which_of_them_counts() -> None:
    from examples.transaction_mirror.settings import flags_of

    names = {flag: f"MADARA_EXTERNAL_DB_{flag.replace('-', '_').upper()}" for flag in FLAGS}
    found = settings(**{names[flag]: text for flag, (text, _) in FLAGS.items()})
    for flag, (_, value) in FLAGS.items():
        assert getattr(found, flag.replace("-", "_")) == value
    assert settings(*flags_of(found)) == found
    assert settings("--external-db-batch-size=7", MADARA_EXTERNAL_DB_BATCH_SIZE="8").batch_size == 7


def test_help_does_not_show_the_values_of_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings("--help", MADARA_EXTERNAL_DB_MONGODB_URI="mongodb://user:s3cr%40et@host")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "MADARA_EXTERNAL_DB_MONGODB_URI" in said
    assert "s3cr" not in said


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        (["--external-db-batch-size=0"], {}, "external-db-batch-size"),
        ([], {"MADARA_EXTERNAL_DB_STRICT_OUTBOX": "perhaps"}, "write true or false"),
        ([], {"MADARA_EXTERNAL_DB_RETENTION_SECS": "-1"}, "MADARA_EXTERNAL_DB_RETENTION_SECS"),
        (["--external-db-enabled"], {}, "needs --external-db-mongodb-uri"),
        (["--external-db-retry-backoff-max-ms=1"], {}, "is smaller than"),
    ],
)
def test_wrong_settings(
    flags: list[str], environ: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        settings(*flags, **environ)
    assert said in capsys.readouterr().err


class Target:
    """Takes two batches, and then none."""

    def __init__(self) -> None:
        self.batches = 0

    def open(self) -> None:
        pass

    def write(self, entries: Any) -> DrainedBatch:
        self.batches += 1
        if self.batches > 2:
            raise ConnectionError("MongoDB is away")
        return DrainedBatch(len(entries) - 1, 1, {})

    def close(self) -> None:
        pass


def test_metrics(tmp_path: Path) -> None:
    from examples.transaction_mirror.metrics import MirrorMetrics

    with EmbeddedOutbox(tmp_path / "outbox") as outbox:
        drainer = Drainer(outbox, Target(), batch=3)
        metrics = MirrorMetrics(outbox, drainer)
        reader = InMemoryMetricReader()
        metrics.instrument(MeterProvider([reader]).get_meter("madara.external_db"), drainer)
        for number in range(8):
            outbox.write(str(number), b"x")
        assert [drainer.drain_once(), drainer.drain_once()] == [3, 3]
        with pytest.raises(ConnectionError):
            drainer.drain_once()
        metrics.deleted += 5
        data = reader.get_metrics_data()
        assert data is not None
        found: dict[str, Any] = {
            metric.name: metric.data.data_points[0] for metric in data.resource_metrics[0].scope_metrics[0].metrics
        }
        assert found.keys() == {f"external_db.{name}" for name in METRICS}
        assert found["external_db.transactions_written"].value == 4
        assert found["external_db.transactions_deleted"].value == 5
        assert found["external_db.outbox_size"].value == 2
        assert found["external_db.batch_size"].value == 2
        assert found["external_db.write_latency_seconds"].count == 2
        registry = CollectorRegistry()
        registry.register(metrics)
        text = generate_latest(registry).decode()
        assert "external_db_transactions_written_total 4.0" in text
        assert "external_db_write_latency_seconds_count 2.0" in text
        assert all(f"external_db_{name}" in text for name in METRICS)
