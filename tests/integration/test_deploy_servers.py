"""The servers of compose/ take the settings that compose.yaml gives them, tried on the same programs without Docker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from helpers.deploy_files import compose
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until
from tailrace.testkit.stack.kafka import quiet_admin
from tailrace.testkit.stack.kafka_local import java
from tailrace.testkit.stack.paths import quiet
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.registry import API, application
from tools.compose_shop import get

SERVICES = compose()["services"]


def test_kafka_knows_every_setting(kafka: KafkaBroker) -> None:
    """Its image makes the setting `a.b` of the variable KAFKA_A_B. It would ignore a name that is misspelt."""
    admin = quiet_admin(kafka.bootstrap)
    [broker] = admin.list_topics(timeout=30).brokers
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    known = set(admin.describe_configs([resource])[resource].result(30))
    given = {name.removeprefix("KAFKA_").lower().replace("_", ".") for name in SERVICES["kafka"]["environment"]}
    assert given
    assert given <= known


@pytest.mark.slow
def test_the_registry_keeps_schemas_in_postgres(database: str, postgres: PostgresServer, tmp_path: Path) -> None:
    """Its image passes variables on: APICURIO_A_B is the setting `apicurio.a.b`."""
    port = free_port()
    with psycopg.connect(database) as connection:
        info = connection.info
        ours = {"url": f"jdbc:postgresql://{info.host}:{info.port}/{info.dbname}", "username": info.user}
        ours["password"] = info.password
    environment = dict(SERVICES["registry"]["environment"])
    for name, value in ours.items():
        assert f"APICURIO_DATASOURCE_{name.upper()}" in environment
        environment[f"APICURIO_DATASOURCE_{name.upper()}"] = value
    environment |= {"QUARKUS_HTTP_PORT": str(port), "QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_MANAGEMENT_PORT": "0"}
    library = application(quiet)
    process = LocalProcess("registry", tmp_path)
    try:
        process.launch(
            [str(java()), "-Xmx256m", f"-Djava.io.tmpdir={tmp_path}", "-jar", str(library / "quarkus-run.jar")],
            {"PATH": os.environ["PATH"], **environment},
        )

        def answers() -> bool:
            assert process.running, process.log.read_text()[-3000:]
            try:
                return bool(get(f"http://127.0.0.1:{port}{API}/subjects") == [])
            except OSError:
                return False

        wait_until(answers, 180, what="an answer of the registry")
        with psycopg.connect(database) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        assert ("artifacts",) in tables
        assert is_healthy(port)
    finally:
        process.close()
    assert not is_healthy(port)


def is_healthy(port: int) -> bool:
    """Runs the health check of the registry."""
    _, *command = SERVICES["registry"]["healthcheck"]["test"]
    assert any(f"GET {API}/subjects " in word for word in command)
    here = [word.replace("/8080", f"/{port}") for word in command]
    return subprocess.run(here, capture_output=True, check=False, timeout=30).returncode == 0
