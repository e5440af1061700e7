"""Row marks of the layouts `streams` and `storage`: the status columns of the tables as their services have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.command import Tailrace
from integration.test_layouts import SCHEMA, Pipeline
from tailrace.testkit.stack import KafkaBroker, wait_until

GOOD, BAD = '{"team_id": "t"}', '{"team_id": "t", "amount": "much"}'


def start(pipeline: Pipeline) -> None:
    pipeline.configure()
    pipeline.file.write_text(json.dumps({**json.loads(pipeline.file.read_text()), "marks": "rows"}))
    pipeline.start()


def redriven(pipeline: Pipeline, tailrace: Tailrace, kind: str) -> None:
    """Redrives the dead letters after the schema has changed so that they pass."""
    schema: dict[str, Any] = {**SCHEMA, "properties": {"team_id": {}, "amount": {}}}
    (pipeline.folder / "schemas" / kind / "1.json").write_text(json.dumps(schema))
    tailrace("dlq", "redrive", pipeline.file, "--all-open", "--yes")


def test_streams(database: str, kafka: KafkaBroker, tmp_path: Path, tailrace: Tailrace) -> None:
    pipeline = Pipeline(database, kafka, tmp_path, "streams", ["payout.sent"])
    try:
        pipeline.set_up()
        start(pipeline)
        for event, payload in (("evt-1", GOOD), ("evt-2", BAD)):
            pipeline.execute(
                "INSERT INTO outbox_events (id, stream, topic, payload) VALUES (%s, %s, 'payout.sent', %s)",
                event, f"STREAM_{pipeline.name}", payload,
            )  # fmt: skip

        def marks() -> list[tuple[Any, ...]]:
            return pipeline.execute(
                "SELECT processed, processed_at IS NOT NULL, split_part(error, ':', 1) FROM outbox_events ORDER BY id"
            )

        failed = [(True, True, None), (False, False, "schema_validation_failed")]
        wait_until(lambda: marks() == failed, 60, what="the marks")
        redriven(pipeline, tailrace, "payout.sent")
        wait_until(lambda: marks() == [(True, True, None)] * 2, 60, what="the mark of the redriven event")
    finally:
        pipeline.close()


def test_storage(database: str, kafka: KafkaBroker, tmp_path: Path, tailrace: Tailrace) -> None:
    """The copy of a dead-lettered row is written in the transaction of its mark."""
    pipeline = Pipeline(database, kafka, tmp_path, "storage", ["STORED"])
    try:
        pipeline.set_up()
        start(pipeline)
        for event, payload in (("o-1", GOOD), ("o-2", BAD)):
            pipeline.execute(
                "INSERT INTO storage_outbox (outbox_id, aggregate_id, aggregate_type, event_type, event_payload, "
                "sequence_number, target_topic, partition_key) VALUES (%s, 'a', 'store', 'STORED', %s, 1, %s, 'a')",
                event, payload, f"{pipeline.name}.events",
            )  # fmt: skip

        def marks() -> list[tuple[Any, ...]]:
            return pipeline.execute(
                "SELECT delivery_status, delivery_attempts, first_attempt_at <= last_attempt_at, "
                "delivered_at IS NOT NULL FROM storage_outbox ORDER BY outbox_id"
            )

        failed = [("delivered", 1, True, True), ("dlq", 1, True, False)]
        wait_until(lambda: marks() == failed, 60, what="the marks")
        copies = pipeline.execute(
            "SELECT original_outbox_id, outbox_id, dlq_reason, failure_details->>'explanation', x.event_payload, "
            "recovery_instructions, x.xmin = o.xmin FROM storage_outbox_dlq x JOIN storage_outbox o USING (outbox_id)"
        )
        ((original, copied, reason, explanation, payload, instructions, same_transaction),) = copies
        assert (original, copied, reason) == ("o-2", "o-2", "schema_validation_failed")
        assert ("much" in explanation, payload["amount"], instructions) == (True, "much", {})
        assert same_transaction
        redriven(pipeline, tailrace, "STORED")
        done = ("delivered", 2, True, True)
        wait_until(lambda: marks()[1] == done, 60, what="the mark of the redriven event")
        assert pipeline.execute("SELECT recovery_instructions ? 'replayed_at' FROM storage_outbox_dlq") == [(True,)]
    finally:
        pipeline.close()
