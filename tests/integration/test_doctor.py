"""`tailrace doctor` on real servers: each problem is made, found, fixed with the printed fix, and gone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from psycopg.conninfo import conninfo_to_dict

from helpers.doctor import Doctor
from helpers.shop import Shop
from tailrace.check.doctor import event_sample
from tailrace.cli import main
from tailrace.config.load import load_pipeline
from tailrace.dlq.resolutions import resolutions_topic
from tailrace.kafka.topics import end_offsets, partition_counts
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions
from tailrace.sources.postgres.connection import PgConnection
from tailrace.testkit.stack import KafkaCluster, RegistryServer, wait_until
from tailrace.worker.options import kafka_options

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
PASSWORD = "doctor-s3cret"
MakeTopic = Callable[..., None]


@pytest.fixture
def system(shop: Shop) -> Iterator[Callable[[str, str], None]]:
    """Sets a setting of the shared server until the end of the test."""
    changed: list[str] = []

    def set_to(name: str, value: str) -> None:
        changed.append(name)
        shop.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        reload(shop, name, value)

    yield set_to
    for name in changed:
        shop.execute(f"ALTER SYSTEM RESET {name}")
    shop.execute("SELECT pg_reload_conf()")


def reload(shop: Shop, name: str, value: str) -> None:
    shop.execute("SELECT pg_reload_conf()")
    wait_until(lambda: shop.execute(f"SHOW {name}") == [(value,)], 30, what=f"{name} = {value}")


def test_a_pipeline_without_problems_has_none(shop: Shop, doctor: Doctor) -> None:
    shop.insert(VALID)
    report = doctor.report()
    assert report["ok"]
    pipeline = report["pipelines"][0]
    assert [each for each in pipeline["findings"] if each["severity"] == "problem"] == []
    assert pipeline["checks"] > 20
    assert "whole table" in pipeline["sampled"]
    assert not {each["code"] for each in pipeline["findings"]} & {"type-without-schema", "type-without-route"}


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("0", "off"),
        pytest.param("2s", "short", marks=pytest.mark.slow),
        pytest.param("1h", "long", marks=pytest.mark.slow),
    ],
)
def test_the_wal_sender_timeout(doctor: Doctor, system: Callable[[str, str], None], value: str, code: str) -> None:
    system("wal_sender_timeout", value)
    doctor.heals(f"wal-sender-timeout-{code}", severity="warning")


def test_a_slot_that_nobody_reads(shop: Shop, doctor: Doctor) -> None:
    slot = f"left_{shop.name}"
    shop.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    doctor.heals("foreign-slot", slot, severity="note")
    assert shop.execute(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'") == [(0,)]


def test_dead_rows_and_autovacuum(shop: Shop, doctor: Doctor) -> None:
    shop.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)")
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), 'order', 'k', "
        "'OrderPlaced', %s FROM generate_series(1, 120000)",
        VALID,
    )
    shop.execute("ANALYZE outbox")
    shop.execute("DELETE FROM outbox WHERE ctid >= '(100,0)'")
    found = lambda: shop.execute("SELECT n_dead_tup > 10000 FROM pg_stat_all_tables WHERE relid = 'outbox'::regclass")  # noqa: E731
    wait_until(lambda: found() == [(True,)], 60, what="the statistics")
    doctor.heals("outbox-autovacuum-off", "outbox", severity="warning")
    doctor.heals("outbox-dead-tuples", "dead", severity="warning")
    doctor.heals("outbox-index-bloat", "empty", severity="warning")


def test_an_index_for_retention(shop: Shop, doctor: Doctor) -> None:
    shop.configure(retention={"after": "30d"})
    doctor.heals("outbox-index-missing", "created_at", severity="note")


def test_events_without_schema_and_route(shop: Shop, doctor: Doctor) -> None:
    shop.insert(VALID, kind="OrderShipped")
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        "VALUES (gen_random_uuid(), 'it''s me', 'k', 'Odd \"type\"', %s), "
        "(gen_random_uuid(), 'invoice', 'k', 'OrderPlaced', %s)",
        VALID,
        json.dumps({"order": 7, "planted": PASSWORD}),
    )
    doctor.secrets.append(PASSWORD)
    doctor.heals("type-without-schema", "OrderShipped", severity="warning")
    doctor.heals("type-without-route", "invoice", severity="warning")
    assert doctor.finding("event-invalid")["severity"] == "note"
    assert doctor.finding("type-without-route", "it's me")["fixes"][0]["kind"] == "text"
    assert (shop.folder / "schemas" / "OrderShipped" / "1.json").exists()


def test_a_large_table_is_only_sampled(shop: Shop, doctor: Doctor) -> None:
    """The newest rows are found, and few pages are read: of about 4,500, the two samples are 500."""
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), 'order', 'k', "
        "'OrderPlaced', %s FROM generate_series(1, 200000)",
        VALID,
    )
    shop.execute("VACUUM ANALYZE outbox")
    shop.insert(VALID, kind="OrderShipped")
    pages = "SELECT heap_blks_read + heap_blks_hit FROM pg_statio_all_tables WHERE relid = 'outbox'::regclass"
    shop.execute("SELECT pg_stat_reset()")
    wait_until(lambda: shop.execute(pages) == [(0,)], 30, what="new statistics")
    found = doctor.finding("type-without-schema", "OrderShipped")
    assert "% of the table" in found["what"]
    wait_until(lambda: shop.execute(pages)[0][0] > 0, 30, what="the statistics of its session")
    assert shop.execute("SELECT pg_relation_size('outbox') / 8192")[0][0] > 5 * shop.execute(pages)[0][0]


@pytest.mark.slow
def test_a_partitioned_table_is_sampled(shop: Shop, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    for statement in (
        "DROP TABLE outbox",
        "CREATE TABLE outbox (id uuid, aggregatetype text, gone text, aggregateid text, type text, payload jsonb, "
        "twice text GENERATED ALWAYS AS (type || type) STORED, created_at timestamptz DEFAULT now()) "
        "PARTITION BY RANGE (created_at)",
        "ALTER TABLE outbox DROP COLUMN gone",
        "CREATE TABLE old PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2021-01-01')",
        # With its columns in another order.
        "CREATE TABLE new (type text, id uuid, created_at timestamptz DEFAULT now(), aggregatetype text, payload jsonb,"
        " twice text GENERATED ALWAYS AS (type || type) STORED, aggregateid text)",
        "ALTER TABLE outbox ATTACH PARTITION new DEFAULT",
    ):
        shop.execute(statement)
    shop.insert(VALID, kind="OrderShipped")
    shop.insert(VALID)
    monkeypatch.setattr(event_sample, "PAGES", 0.5)
    doctor.heals("type-without-schema", "OrderShipped", severity="warning")
    assert "not-checked" not in doctor.codes()


def test_a_topic_that_does_not_exist(shop: Shop, doctor: Doctor) -> None:
    shop.insert(VALID)
    shop.configure(topics={"create": False})
    found = doctor.finding("type-topic-missing", shop.topic)
    assert found["severity"] == "problem"
    doctor.fix(found)
    assert "type-topic-missing" not in doctor.codes()


@pytest.mark.slow
def test_settings_of_topics(shop: Shop, doctor: Doctor, make_topic: MakeTopic) -> None:
    make_topic(
        shop.topic,
        3,
        unclean_leader_election_enable="true",
        min_insync_replicas="2",
        cleanup_policy="compact",
    )
    doctor.heals("unclean-election", shop.topic, severity="warning")
    doctor.heals("min-insync-high", shop.topic, severity="problem")
    doctor.heals("event-topic-compacted", shop.topic, severity="warning")


@pytest.mark.slow
def test_a_setting_that_a_spec_declares(shop: Shop, doctor: Doctor, make_topic: MakeTopic) -> None:
    """It is fixed in the spec, from where `topics apply` sets it."""
    file = shop.folder / "topics" / "orders.yaml"
    declared = {"config": {"unclean.leader.election.enable": "true"}}
    file.write_text(json.dumps({**json.loads(file.read_text()), **declared}))
    make_topic(shop.topic, 3, unclean_leader_election_enable="true")
    doctor.heals("unclean-election", shop.topic, severity="warning")
    assert "unclean.leader.election.enable: 'false'" in file.read_text()


@pytest.mark.slow
def test_settings_of_internal_topics(shop: Shop, doctor: Doctor, make_topic: MakeTopic) -> None:
    offsets = f"{shop.name}.offsets"
    shop.configure(kafka={"offsets_topic": offsets})
    make_topic(offsets, cleanup_policy="compact")
    make_topic(resolutions_topic(kafka_options(load_pipeline(shop.file))), cleanup_policy="delete")
    doctor.heals("offsets-topic-uncompacted", offsets, severity="warning")
    doctor.heals("internal-topic-settings", "resolutions of", severity="problem")


def test_a_transaction_timeout_that_brokers_do_not_accept(shop: Shop, doctor: Doctor) -> None:
    shop.configure(kafka={"settings": {"transaction.timeout.ms": 1_800_000}})
    doctor.heals("transaction-timeout", severity="problem")
    assert shop.settings["kafka"]["settings"]["transaction.timeout.ms"] == 900_000


def only_for_others(shop: Shop, kind: ResourceType, name: str) -> None:
    """Allows another principal something: from then on nobody else may do anything, unless a rule allows it."""
    binding = AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:other", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    admin = shop.kafka.admin()
    for added in admin.create_acls([binding]).values():
        added.result(30)


@pytest.mark.slow
def test_rights_on_topics_and_on_the_transactional_id(shop: Shop, doctor: Doctor, make_topic: MakeTopic) -> None:
    make_topic(shop.topic, 3)
    only_for_others(shop, ResourceType.TOPIC, shop.topic)
    only_for_others(shop, ResourceType.TRANSACTIONAL_ID, shop.name)
    doctor.heals("transactional-id-access", shop.name, severity="problem")
    # Without Describe, a topic is not even listed: the right to describe is granted first.
    admin = shop.kafka.admin()
    allowed = AclBinding(
        ResourceType.TOPIC, shop.topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    for added in admin.create_acls([allowed]).values():
        added.result(30)
    doctor.heals("topic-access", shop.topic, severity="problem")
    connector = shop.start()
    shop.insert(VALID)
    partitions = [(shop.topic, number) for number in range(3)]
    wait_until(lambda: sum(end_offsets(admin, partitions).values()) > 0, 60, what="the event, with these rights")
    assert connector.stop() == 0


def test_a_server_that_does_not_answer_is_one_finding(shop: Shop, doctor: Doctor) -> None:
    shop.configure(kafka={"bootstrap": "127.0.0.1:1"})
    codes = doctor.codes()
    assert "kafka" in codes
    assert doctor.finding("role")["severity"] == "warning", "Postgres is still checked"
    shop.configure(kafka={"bootstrap": shop.kafka.bootstrap}, source={"postgres": "host=127.0.0.1 port=1 dbname=x"})
    assert doctor.finding("postgres")["severity"] == "problem"
    assert "kafka" not in doctor.codes()


def test_warnings_are_failures_if_strict(doctor: Doctor) -> None:
    assert doctor.report()["ok"]
    assert not doctor.report("--strict")["ok"]


@pytest.mark.slow
def test_it_needs_no_right_to_write_and_changes_nothing(shop: Shop, doctor: Doctor) -> None:
    """A role that may only read, while a pipeline runs; nothing in Postgres or Kafka is different afterwards."""
    connector = shop.start()
    shop.insert(VALID)
    wait_until(lambda: len(shop.published()) == 1, 60, what="the event")
    role = f"r_{shop.name}"
    shop.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    shop.execute(f"GRANT SELECT ON outbox TO {role}")
    shop.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    shop.configure(source={"postgres": shop.postgres.dsn(shop.name, role, PASSWORD)})
    doctor.secrets.append(PASSWORD)
    assert connector.stop() == 0
    before = state(shop)
    report = doctor.report()
    assert state(shop) == before
    assert report["ok"], report
    assert "not-checked" not in {each["code"] for each in report["pipelines"][0]["findings"]}


def state(shop: Shop) -> object:
    """Everything that a check could change: objects, slots and rows of Postgres; topics, records and rules of Kafka."""
    written = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_all_tables WHERE schemaname = 'public'"
    admin = shop.kafka.admin()
    mine = {name: count for name, count in partition_counts(admin).items() if shop.name in name}
    partitions = [(name, number) for name, count in mine.items() for number in range(count)]
    return (
        shop.execute(
            "SELECT relname, relfilenode FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1"
        ),
        shop.execute("SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE database = %s", shop.name),
        shop.execute("SELECT pubname FROM pg_publication"),
        shop.execute(written),
        end_offsets(admin, partitions),
    )


@pytest.mark.slow
def test_a_standby_without_the_slot(shop18: Shop, capsys: pytest.CaptureFixture[str], kafka_tools: Path) -> None:
    """The slot becomes a failover slot by the printed command."""
    doctor = Doctor(shop18, capsys, kafka_tools)
    assert shop18.postgres.bin_dir is not None
    (kafka_tools / "psql").unlink(missing_ok=True)
    (kafka_tools / "psql").symlink_to(shop18.postgres.bin_dir / "psql")
    doctor.environ["PGPASSWORD"] = str(conninfo_to_dict(shop18.dsn).get("password") or "")
    shop18.start().stop()
    assert "slot-without-failover" not in doctor.codes()
    with PgConnection(shop18.dsn, replication=True, timeout=30, application="standby1") as link:
        lsn = link.query("IDENTIFY_SYSTEM")[0][2]
        link.begin_copy(f"START_REPLICATION PHYSICAL {lsn}")
        doctor.heals("slot-without-failover", "standby1", severity="warning")
    failover = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    assert shop18.execute(failover, shop18.slot) == [(True,)]
    assert shop18.settings["source"]["failover"] is True


def test_a_folder_with_pipelines_that_share_too_much(
    shop: Shop, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**shop.settings, "pipeline": f"{shop.name}_b", "source": {**shop.settings["source"], "slot": shop.slot}}
    shop.configure(source={"slot": shop.slot})
    (shop.folder / "other.yaml").write_text(json.dumps(other))
    (shop.folder / "again.yaml").write_text(json.dumps(shop.settings))
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(["doctor", str(shop.folder), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert caught.value.code == 1
    assert {each["pipeline"] for each in report["pipelines"]} == {shop.name, f"{shop.name}_b"}
    found = {each["code"]: each for each in report["worker"]["findings"]}
    assert {"same-slot", "same-events", "same-name"} <= found.keys()
    doctor.fix(found["same-slot"])
    with pytest.raises(SystemExit):
        main(["doctor", str(shop.folder), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert "same-slot" not in {each["code"] for each in report["worker"]["findings"]}


def test_the_text_for_people(
    shop: Shop, doctor: Doctor, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.insert(VALID, kind="OrderShipped")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(SystemExit) as caught:
        main(["doctor", str(shop.file)])
    text, progress = capsys.readouterr()
    assert f"0 of 1 checked; {shop.name}: Kafka" in progress
    assert caught.value.code == 0
    assert "  Events in the outbox\n    warning type-without-schema: " in text
    assert "      why: " in text
    assert "      shell:\n        mkdir -p " in text
    assert text.rstrip().endswith("notes.")


@pytest.mark.slow
def test_the_registry(shop: Shop, doctor: Doctor, registry: RegistryServer) -> None:
    """Its compatibility level begins as NONE; the level of a subject is fixed first, then the one of all."""
    shop.insert(VALID)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}
    subject = f"{shop.name}.OrderPlaced"
    options = RegistryOptions(registry.url)
    with RegistryClient(options) as client:
        client.register(subject, document, "json")
        client.set_compatibility("NONE", subject)
        client.set_compatibility("BACKWARD")
    given = {"url": registry.url, "subject": f"{shop.name}.{{type}}"}
    shop.settings["schemas"] = {"registry": given}
    shop.configure(format={"key": "json"})
    doctor.heals("registry-compatibility", subject, severity="warning")
    with RegistryClient(options) as client:
        client.set_compatibility("NONE")
    doctor.heals("registry-compatibility", registry.url, severity="warning")
    doctor.heals("registry-key-schema", f"{shop.topic}-key", severity="problem")


@pytest.mark.slow
def test_replicas_that_need_not_be_in_sync(shop: Shop, doctor: Doctor) -> None:
    """Three brokers and three replicas, but a record counts as published when one broker has it."""
    with KafkaCluster() as kafka:
        shop.configure(kafka={"bootstrap": kafka.bootstrap})
        topic = NewTopic(shop.topic, 3, 3, config={"min.insync.replicas": "1"})
        admin = kafka.admin()
        for created in admin.create_topics([topic]).values():
            created.result(30)
        wait_until(lambda: "min-insync-low" in doctor.codes(), 60, what="the topic on all brokers")
        doctor.heals("min-insync-low", shop.topic, severity="warning")
