"""The layouts `streams` and `storage` on real servers: set-up, check, and from a service's row to the Kafka record."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message

from helpers.command import Tailrace
from helpers.service import Connector
from tailrace.errors import EventInvalid
from tailrace.outbox import Outbox
from tailrace.outbox.ddl import outbox_ddl
from tailrace.outbox.mongosh import collection_commands
from tailrace.outbox.specs import LAYOUTS
from tailrace.sql_names import quote_table
from tailrace.testkit.stack import KafkaBroker, MongoServer, wait_until
from tailrace.testkit.topic_reader import read_all

CATALOG = """
SELECT 'relation', c.oid::text, c.relname::text, c.relacl::text, pg_get_indexdef(c.oid) FROM pg_class c
    WHERE relnamespace = 'public'::regnamespace
UNION ALL SELECT 'constraint', c.oid::text, conname::text, pg_get_constraintdef(c.oid), '' FROM pg_constraint c
    WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'role', oid::text, rolname::text, '', '' FROM pg_roles
UNION ALL SELECT 'publication', p.oid::text, pubname::text, t.tablename::text, t.attnames::text
    FROM pg_publication p JOIN pg_publication_tables t USING (pubname)
ORDER BY 1, 2
"""
SCHEMA = {
    "type": "object",
    "required": ["team_id"],
    "properties": {"team_id": {"type": "string"}, "amount": {"type": "integer"}},
    "additionalProperties": False,
}


class Pipeline:
    """A database with an outbox of one layout, its pipeline file, and a connector."""

    def __init__(self, dsn: str, kafka: KafkaBroker, folder: Path, layout: str, types: list[str]) -> None:
        self.dsn = dsn
        self.kafka = kafka
        self.folder = folder
        self.name = f"{layout}_{uuid.uuid4().hex[:8]}"
        self.table = {"streams": "public.outbox_events", "storage": "public.storage_outbox"}[layout]
        self.layout = layout
        self.connector: Connector | None = None
        for kind in types:
            (folder / "schemas" / kind).mkdir(parents=True)
            (folder / "schemas" / kind / "1.json").write_text(json.dumps(SCHEMA))

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    @property
    def letters(self) -> str:
        return f"{self.name}.dead-letters"

    def configure(self, **outbox: Any) -> None:
        settings = {
            "pipeline": self.name,
            "source": {"postgres": self.dsn, "table": self.table, "start": "beginning"},
            "outbox": {"layout": self.layout, **outbox},
            "schemas": {"folder": "schemas"},
            "kafka": {"bootstrap": self.kafka.bootstrap},
        }
        self.file.write_text(json.dumps(settings))

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def set_up(self, marks: str = "none") -> None:
        self.execute(outbox_ddl(self.layout, self.table, self.name, f"tailrace_{self.name}", marks=marks))

    def start(self) -> None:
        self.connector = Connector(self.file, self.folder / "log")
        self.connector.says('"running"')

    def records(self, topic: str, count: int) -> list[Message]:
        found: list[Message] = []

        def arrived() -> bool:
            found[:] = read_all(self.kafka.bootstrap, [topic])
            return len(found) >= count

        log = self.connector.log if self.connector else ""
        wait_until(arrived, 60, what=f"{count} records on {topic}; the log:\n{log}")
        assert len(found) == count
        return found

    def close(self) -> None:
        if self.connector is not None and self.connector.running:
            self.connector.kill()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [self.name]).fetchall():
                connection.execute(f'DROP OWNED BY "{self.name}"; DROP ROLE "{self.name}"')  # type: ignore[call-overload]


@pytest.fixture
def streams(database: str, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(database, kafka, tmp_path, "streams", ["payout.generated", "payout.sent"])
    yield pipeline
    pipeline.close()


@pytest.fixture
def storage(database: str, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(database, kafka, tmp_path, "storage", ["STORED"])
    yield pipeline
    pipeline.close()


def headers(message: Message) -> dict[str, str]:
    pairs: Any = message.headers() or []
    assert len({name for name, _ in pairs}) == len(pairs)
    return {name: value.decode(errors="replace") for name, value in pairs}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_sql_may_run_twice(database: str, layout: str) -> None:
    role = f"r_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as connection:
        sql: Any = outbox_ddl(layout, 'public."Out\'s Box"', role, "tailrace_x")
        try:
            connection.execute(sql)
            before = connection.execute(CATALOG).fetchall()
            assert {kind for kind, *_ in before} == {"relation", "constraint", "role", "publication"}
            connection.execute(sql)
            assert connection.execute(CATALOG).fetchall() == before
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")  # type: ignore[call-overload]


def test_the_set_up_of_a_collection_may_run_twice(mongo: MongoServer) -> None:
    """Five indexes for a polling publisher's questions, and one for the first read."""
    name = f"layouts_{uuid.uuid4().hex[:8]}"
    with mongo.client() as client:
        seen = []
        for _ in range(2):
            for command in collection_commands(name, "outbox"):
                client[name].command(command.body)
            seen.append(client[name].outbox.index_information())
        assert seen[0] == seen[1]
        keys = {tuple(field for field, _ in index["key"]) for index in seen[0].values()}
        assert keys == {
            ("_id",), ("event_id",), ("entity_id", "entity_version"), ("status", "created_at"),
            ("status", "published_at"), ("locked_until",), ("created_at", "_id"),
        }  # fmt: skip
        client.drop_database(name)


def test_streams_from_the_row_to_the_record(streams: Pipeline, tailrace: Tailrace) -> None:
    """The table exactly as an existing service has it; the connector only adds its publication and slot."""
    streams.execute(
        """create table outbox_events (
             id text primary key, stream text not null, topic text not null, payload jsonb not null,
             created_at timestamptz default now(), processed bool default false, processed_at timestamptz, error text
           )"""
    )
    streams.configure(columns={"key": "payload#/team_id"})
    stream = f"STREAM_{streams.name}"
    insert = "INSERT INTO outbox_events (id, stream, topic, payload, processed, error) VALUES (%s, %s, %s, %s, %s, %s)"
    first = ("evt-1", stream, "payout.generated", '{"team_id": "t_555", "amount": 12}', True, "seen before")
    streams.execute(insert, *first)
    states = {check["name"]: check["state"] for check in tailrace("check", streams.file)["checks"]}
    assert (states["columns"], states["delivery columns"]) == ("OK", "OK"), states

    streams.start()
    writer = Outbox(layout="streams", table=streams.table, topic=stream, schemas=streams.folder / "schemas")
    with psycopg.connect(streams.dsn) as connection:
        writer.add(connection, "payout.sent", {"team_id": "t_556"}, id="evt-2")
        for payload, topic in (({"team_id": 5}, stream), (None, stream), ({"team_id": "t"}, "")):
            with pytest.raises(EventInvalid):
                writer.add(connection, "payout.sent", payload, topic=topic)
    streams.execute(insert, "evt-3", stream, "payout.sent", '{"amount": 1}', False, None)
    streams.execute(insert, "evt-4", stream, "payout.sent", '{"team_id": "t_1", "amount": "much"}', False, None)
    streams.execute("UPDATE outbox_events SET processed = true, processed_at = now(), error = 'x'")
    published = {headers(message)["id"]: message for message in streams.records(stream, 2)}
    message = published["evt-1"]
    sent = headers(message)
    assert (message.key(), message.value()) == (b"t_555", b'{"amount": 12, "team_id": "t_555"}')
    assert sent.keys() == {"id", "type", "position", "timestamp", "tailrace.pipeline", "stream", "created_at"}
    assert (sent["id"], sent["type"], sent["stream"]) == ("evt-1", "payout.generated", stream)
    assert published["evt-2"].key() == b"t_556"

    letters = [headers(message) for message in streams.records(streams.letters, 2)]
    reasons = [letter["tailrace.reason"] for letter in letters]
    assert reasons == ["permanent_failure", "schema_validation_failed"]
    assert "'payload#/team_id' is missing" in letters[0]["tailrace.explanation"]
    assert letters[1]["id"] == "evt-4"
    assert tailrace("verify", streams.file)["clean"] is True


def test_storage_from_the_row_to_the_record(storage: Pipeline, tailrace: Tailrace) -> None:
    storage.set_up()
    storage.configure()
    topic = f"{storage.name}.events"
    insert = (
        "INSERT INTO storage_outbox (outbox_id, aggregate_id, aggregate_type, event_type, event_payload, "
        "event_metadata, sequence_number, target_topic, partition_key) VALUES (%s, 's-1', 'store', 'STORED', "
        "%s, %s, %s, %s, %s)"
    )
    metadata = '{"correlation_id": "c-7", "event_version": "1.0.0", "user": "u"}'
    storage.execute(insert, "outbox_1", '{"team_id": "t", "amount": 12}', metadata, 1, topic, "p-1")
    states = {check["name"]: check["state"] for check in tailrace("check", storage.file)["checks"]}
    assert (states["columns"], states["delivery columns"]) == ("OK", "OK")

    storage.start()
    storage.execute(insert, "outbox_2", '{"team_id": "t"}', "{}", 2, topic, None)
    storage.execute(insert, "outbox_3", '{"team_id": "t", "metadata": {}}', "{}", 3, topic, "p-1")
    storage.execute(insert, "outbox_4", '{"team_id": 7}', "{}", 4, topic, "p-1")
    storage.execute("UPDATE storage_outbox SET delivery_status = 'delivered', delivered_at = now()")
    published = {headers(message)["id"]: message for message in storage.records(topic, 2)}
    message = published["outbox_1"]
    assert message.key() == b"p-1"
    assert json.loads(message.value() or b"") == {
        "team_id": "t",
        "amount": 12,
        "metadata": {**json.loads(metadata), "outbox_id": "outbox_1", "sequence_number": 1},
    }
    sent = headers(message)
    assert sent.keys() == {
        "id", "type", "position", "timestamp", "tailrace.pipeline", "event_type", "aggregate_id", "correlation_id",
    }  # fmt: skip
    named = (sent["id"], sent["event_type"], sent["aggregate_id"], sent["correlation_id"])
    assert named == ("outbox_1", "STORED", "s-1", "c-7")
    second = published["outbox_2"]
    assert second.key() is None
    assert headers(second).keys() == sent.keys() - {"correlation_id"}

    letters = storage.records(storage.letters, 2)
    assert [headers(letter)["id"] for letter in letters] == ["outbox_3", "outbox_4"]
    assert {headers(letter)["tailrace.reason"] for letter in letters} == {"schema_validation_failed"}
    assert letters[1].value() == b'{"team_id": 7}', "the dead letter has the payload as the service wrote it"
    assert tailrace("verify", storage.file)["clean"] is True

    # A corrected dead letter gets its metadata back.
    storage.folder.joinpath("fixed.json").write_text('{"team_id": "seven"}')
    tailrace(
        "dlq", "redrive", storage.file, f"0-{letters[1].offset()}", "--payload", storage.folder / "fixed.json", "--yes"
    )
    values = {headers(message)["id"]: json.loads(message.value() or b"") for message in storage.records(topic, 3)}
    metadata_again = {"outbox_id": "outbox_4", "sequence_number": 4}
    assert values["outbox_4"] == {"team_id": "seven", "metadata": metadata_again}


@pytest.mark.parametrize(
    ("change", "check", "state", "said", "remedy"),
    [
        ("DROP COLUMN target_topic", "columns", "FAIL", "'target_topic'", "Add the column"),
        ("ALTER sequence_number TYPE text", "columns", "FAIL", "wrong type", "TYPE bigint"),
        ("DROP COLUMN next_retry_at", "delivery columns", "WARN", "next_retry_at", "ADD COLUMN"),
        ("RENAME TO other", "tables beside", "WARN", '"other_counters"', "--layout storage --table public.other"),
    ],
)
def test_check_names_a_missing_or_wrong_column(
    storage: Pipeline, tailrace: Tailrace, change: str, check: str, state: str, said: str, remedy: str
) -> None:
    storage.set_up()
    storage.configure()
    storage.execute(f"ALTER TABLE {quote_table(storage.table)} {change}")
    if change.startswith("RENAME"):
        storage.table = "public.other"
        storage.configure()
    output = tailrace("check", storage.file, code=1 if state == "FAIL" else 0)
    found = next(each for each in output["checks"] if each["name"] == check)
    assert found["state"] == state, found
    assert said in found["found"]
    assert remedy in found["remedy"]
    if state == "WARN":
        storage.execute(found["remedy"]) if remedy == "ADD COLUMN" else storage.set_up()
        repaired = tailrace("check", storage.file)["checks"]
        assert next(each["state"] for each in repaired if each["name"] == check) == "OK"
