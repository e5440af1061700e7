"""Row marks of the layouts `streams` and `storage`: the status columns of the tables as their services have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.test_marks_mongo import KILLS
from helpers.command import Tailrace
from helpers.service import Connector
from integration.test_layouts import SCHEMA, Pipeline
from tailrace.testkit.stack import KafkaBroker, wait_until

GOOD, BAD = '{"team_id": "t"}', '{"team_id": "t", "amount": "much"}'


PASSWORD = "only-for-tests"


def start(pipeline: Pipeline, marks: str = "rows") -> None:
    """Starts the connector with the role that `tailrace outbox ddl --marks` creates."""
    pipeline.set_up(marks)
    pipeline.execute(f"ALTER ROLE \"{pipeline.name}\" PASSWORD '{PASSWORD}'")
    pipeline.configure()
    settings = json.loads(pipeline.file.read_text())
    settings["source"]["postgres"] = psycopg.conninfo.make_conninfo(pipeline.dsn, user=pipeline.name, password=PASSWORD)
    pipeline.file.write_text(json.dumps({**settings, "marks": marks}))
    pipeline.start()


def redriven(pipeline: Pipeline, tailrace: Tailrace, kind: str) -> None:
    """Redrives the dead letters after the schema has changed so that they pass."""
    schema: dict[str, Any] = {**SCHEMA, "properties": {"team_id": {}, "amount": {}}}
    (pipeline.folder / "schemas" / kind / "1.json").write_text(json.dumps(schema))
    tailrace("dlq", "redrive", pipeline.file, "--all-open", "--yes")


def pay(pipeline: Pipeline, event: str, payload: str) -> None:
    pipeline.execute(
        "INSERT INTO outbox_events (id, stream, topic, payload) VALUES (%s, %s, 'payout.sent', %s)",
        event, f"STREAM_{pipeline.name}", payload,
    )  # fmt: skip


def test_streams(database: str, kafka: KafkaBroker, tmp_path: Path, tailrace: Tailrace) -> None:
    pipeline = Pipeline(database, kafka, tmp_path, "streams", ["payout.sent"])
    try:
        start(pipeline)
        for event, payload in (("evt-1", GOOD), ("evt-2", BAD)):
            pay(pipeline, event, payload)

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


def store(pipeline: Pipeline, event: str, payload: str) -> None:
    pipeline.execute(
        "INSERT INTO storage_outbox (outbox_id, aggregate_id, aggregate_type, event_type, event_payload, "
        "sequence_number, target_topic, partition_key) VALUES (%s, 'a', 'store', 'STORED', %s, %s, %s, 'a')",
        event, payload, event.partition("-")[2], f"{pipeline.name}.events",
    )  # fmt: skip


def test_storage(database: str, kafka: KafkaBroker, tmp_path: Path, tailrace: Tailrace) -> None:
    """The copy of a dead-lettered row is written in the transaction of its mark."""
    pipeline = Pipeline(database, kafka, tmp_path, "storage", ["STORED"])
    try:
        start(pipeline)
        for event, payload in (("o-1", GOOD), ("o-2", BAD)):
            store(pipeline, event, payload)

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


@pytest.mark.slow
def test_a_dead_letter_of_a_storage_outbox_is_copied_once(
    database: str, kafka: KafkaBroker, tmp_path: Path, tailrace: Tailrace
) -> None:
    """kill -9 at every failpoint of marks; then the dead letters are written again, as new rows that are delivered."""
    pipeline = Pipeline(database, kafka, tmp_path, "storage", ["STORED"])
    try:
        start(pipeline)
        connector = pipeline.connector
        assert connector is not None
        assert connector.stop() == 0
        number = 0
        for point in KILLS:
            connector = Connector(pipeline.file, tmp_path / f"log-{point}", TAILRACE_KILL=point)
            pipeline.connector = connector
            while connector.running:
                number += 1
                store(pipeline, f"o-{number}", BAD if number % 5 == 0 else GOOD)
            assert connector.ended() == -9, connector.log
        pipeline.start()

        def marks() -> list[tuple[Any, ...]]:
            return pipeline.execute("SELECT delivery_status, count(*) FROM storage_outbox GROUP BY 1 ORDER BY 1")

        bad = number // 5
        wait_until(lambda: marks() == [("delivered", number - bad), ("dlq", bad)], 60, what="the marks")
        assert len(pipeline.records(f"{pipeline.name}.events", number - bad)) == number - bad
        copies = pipeline.execute(
            "SELECT count(*), count(DISTINCT original_outbox_id), bool_and(delivery_attempts = 1) FROM "
            "storage_outbox_dlq"
        )
        assert copies == [(bad, bad, True)]

        pipeline.execute(f'GRANT INSERT ON storage_outbox, storage_outbox_wal TO "{pipeline.name}"')
        schema: dict[str, Any] = {**SCHEMA, "properties": {"team_id": {}, "amount": {}}}
        (pipeline.folder / "schemas" / "STORED" / "1.json").write_text(json.dumps(schema))
        assert pipeline.connector.stop() == 0
        tailrace("dlq", "redrive", pipeline.file, "--all-open", "--as-new", "--yes")
        pipeline.start()
        wait_until(lambda: marks() == [("delivered", number), ("dlq", bad)], 60, what="the marks of the new rows")
        replayed = pipeline.execute(
            "SELECT count(*) FROM storage_outbox_dlq d JOIN storage_outbox n ON n.outbox_id = "
            "d.recovery_instructions->>'new_outbox_id' WHERE n.delivery_status = 'delivered' "
            "AND d.recovery_instructions ? 'replayed_at' AND n.sequence_number = d.sequence_number"
        )
        assert replayed == [(bad,)]
    finally:
        pipeline.close()


@pytest.mark.parametrize("layout", ["streams", "storage"])
def test_the_view_of_a_watermark_has_the_mark_columns(
    layout: str, database: str, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """The columns as row marks would write them, and no row is touched."""
    pipeline = Pipeline(database, kafka, tmp_path, layout, ["payout.sent", "STORED"])
    try:
        start(pipeline, "watermark")
        view = f"tailrace_{pipeline.name}_marks"
        wait_until(lambda: pipeline.execute("SELECT to_regclass(%s)", view)[0][0], 60, what="the view")
        for event, payload in (("e-1", GOOD), ("e-2", BAD)):
            if layout == "storage":
                store(pipeline, event, payload)
            else:
                pay(pipeline, event, payload)
        query, expected = {
            "streams": (
                "SELECT processed, split_part(error, ':', 1), processed_at IS NOT NULL",
                [(True, None, False), (False, "schema_validation_failed", False)],
            ),
            "storage": (
                "SELECT delivery_status, delivery_attempts, first_attempt_at IS NOT NULL, last_attempt_at IS NOT NULL",
                [("delivered", 1, False, False), ("dlq", 1, True, True)],
            ),
        }[layout]
        key = {"streams": "id", "storage": "outbox_id"}[layout]
        wait_until(lambda: pipeline.execute(f"{query} FROM {view} ORDER BY {key}") == expected, 60, what="the marks")
        untouched = "processed" if layout == "streams" else "delivery_status <> 'pending'"
        assert pipeline.execute(f"SELECT FROM {pipeline.table} WHERE {untouched}") == []
    finally:
        pipeline.close()
