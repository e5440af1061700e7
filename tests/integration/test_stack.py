"""The local stack with real servers: they start, restart after every kind of end, and leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from helpers.stack import is_dead
from helpers.tiers import mostly_slow
from tailrace.testkit.stack import (
    KafkaBroker,
    PostgresServer,
    ServerChoice,
    Stack,
    StackError,
    kafka_local,
    postgres,
    wait_until,
)
from tailrace.testkit.stack.paths import unprivileged
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.tcp_proxy import TcpProxy

pytest_plugins = ["helpers.stack"]

# Starts a stack, prints its pids and folders, and waits to be killed.
OWNER = """
import json, os, signal, sys
from tailrace.testkit.stack import ServerChoice, Stack
with Stack(choice=ServerChoice.LOCAL, mongo=True) as stack:
    servers = stack.servers
    with stack.postgres.connect() as connection:
        reported = {
            "uid": os.geteuid(),
            "database": connection.execute("SELECT current_user").fetchone()[0],
            "cluster": stack.kafka.cluster_id,
            "pids": [pid for server in servers for pid in server.pids],
            "reapers": [server.process.reaper_pid for server in servers],
            "run_dirs": [str(server.process.run_dir) for server in servers],
        }
    print(json.dumps(reported), flush=True)
    sys.stdin.read()
"""


def nothing_left(reported: dict[str, Any]) -> bool:
    return all(map(is_dead, reported["pids"] + reported["reapers"])) and not any(
        Path(run_dir).exists() for run_dir in reported["run_dirs"]
    )


def scalar(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def produce(bootstrap: str, topic: str, value: bytes = b"x") -> None:
    """Sends one message in a transaction; raises the error of the broker."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    refused: list[KafkaError] = []
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value, on_delivery=lambda error, _message: error and refused.append(error))
    producer.flush(30)
    if refused:
        producer.abort_transaction(30)
        raise KafkaException(refused[0])
    producer.commit_transaction(30)


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    with PostgresServer(choice=ServerChoice.LOCAL, settings={"wal_sender_timeout": "5s"}) as server:
        yield server


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker(choice=ServerChoice.LOCAL, properties={"message.max.bytes": "54321"}) as broker:
        yield broker


def test_each_test_has_a_database_on_the_shared_postgres(database: str, postgres: PostgresServer) -> None:
    assert scalar(database, "SHOW wal_level") == "logical"
    assert scalar(database, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    # Left behind on purpose: the fixture must be able to drop a database that has a slot.
    scalar(database, "SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')::text")
    assert postgres.version_num // 10000 == 16 or postgres.choice is ServerChoice.ADDRESS


def test_postgres_18_is_available(postgres18: PostgresServer) -> None:
    assert postgres18.version_num // 10000 == 18


def test_the_shared_kafka_commits_a_transaction(kafka: KafkaBroker) -> None:
    kafka.create_topic("shared", partitions=2)
    produce(kafka.bootstrap, "shared")


def test_settings_reach_the_server_and_can_be_altered(own_postgres: PostgresServer) -> None:
    dsn = own_postgres.dsn()
    assert scalar(dsn, "SHOW wal_sender_timeout") == "5s"
    assert scalar(dsn, "SHOW max_replication_slots") == "50"
    with own_postgres.connect() as connection:
        connection.execute("ALTER SYSTEM SET wal_sender_timeout = '7s'")
        connection.execute("SELECT pg_reload_conf()")
    wait_until(lambda: scalar(dsn, "SHOW wal_sender_timeout") == "7s")


def test_postgres_requires_a_password_and_does_not_run_as_root(own_postgres: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(own_postgres.dsn(user="postgres", password="wrong"))
    assert Path(f"/proc/{own_postgres.pid}").stat().st_uid != 0


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_postgres_restarts_with_its_data_on_the_same_port(own_postgres: PostgresServer, end: str) -> None:
    dsn, port, pids = own_postgres.create_database(f"before_{end}"), own_postgres.port, own_postgres.pids
    assert len(pids) > 3
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    getattr(own_postgres, end)()
    assert all(map(is_dead, pids))
    assert not own_postgres.running
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    own_postgres.start()
    assert own_postgres.port == port
    assert own_postgres.pid not in pids
    assert scalar(dsn, "SELECT answer FROM kept") == 42


def test_a_paused_postgres_does_not_answer_until_resumed(own_postgres: PostgresServer) -> None:
    with own_postgres.connect() as connection:
        own_postgres.pause()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(own_postgres.dsn(connect_timeout=2))
        own_postgres.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_cluster_of_a_killed_postgres_leaves_no_shared_memory() -> None:
    with PostgresServer(choice=ServerChoice.LOCAL) as server:
        lock = (server.data_dir / "postmaster.pid").read_text().splitlines()
        segment = lock[6].split()[1]
        assert segment in segments()
        server.kill()
    assert segment not in segments()


def segments() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_a_setting_postgres_cannot_use_is_reported_with_its_log() -> None:
    server = PostgresServer(choice=ServerChoice.LOCAL, settings={"shared_buffers": "a lot"})
    with pytest.raises(StackError, match="ended while it was starting") as caught:
        server.__enter__()
    assert 'invalid value for parameter "shared_buffers"' in caught.value.why
    assert caught.value.remedy


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(StackError, match="there is no Postgres 9"):
        PostgresServer("9", choice=ServerChoice.LOCAL).start()


def test_another_port_is_used_if_the_first_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        socket.create_server((HOST, free_port())) as taken,
        socket.create_server((HOST, free_port())) as also,
    ):
        offers = [sock.getsockname()[1] for sock in (taken, also)] + [free_port(), free_port()]
        for_postgres, for_kafka = iter(offers), iter(offers[1:] + [free_port() for _ in range(3)])
        monkeypatch.setattr(postgres, "free_port", lambda: next(for_postgres))
        monkeypatch.setattr(kafka_local, "free_port", lambda: next(for_kafka))
        with Stack(choice=ServerChoice.LOCAL) as stack:
            assert stack.postgres.port == offers[2]
            assert stack.kafka.port not in offers


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to stage the programs for another user")
def test_unreachable_programs_are_copied_to_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Path(tempfile.mkdtemp())
    cache.chmod(0o755)
    try:
        monkeypatch.setattr(postgres, "reachable", lambda _path, _user: False)
        monkeypatch.setattr(postgres, "shared_cache_dir", lambda _user: cache)
        with PostgresServer("18", choice=ServerChoice.LOCAL) as server:
            assert server.bin_dir is not None
            assert server.bin_dir.is_relative_to(cache)
            assert server.version_num // 10000 == 18
            version = [server.bin_dir / "pg_recvlogical", "--version"]
            subprocess.run(version, check=True, stdout=subprocess.DEVNULL)
    finally:
        shutil.rmtree(cache)


def test_a_server_given_by_address_is_used_and_not_stopped(
    own_postgres: PostgresServer, own_kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_STACK_POSTGRES", own_postgres.dsn())
    monkeypatch.setenv("TAILRACE_STACK_KAFKA", own_kafka.bootstrap)
    with Stack() as named:
        assert not named.postgres.local
        assert not named.kafka.local
        assert named.postgres.port == own_postgres.port
        assert named.kafka.cluster_id == own_kafka.cluster_id
        with pytest.raises(StackError, match="not local"):
            named.postgres.kill()
        with pytest.raises(StackError, match="not local"):
            named.kafka.kill()
    assert own_postgres.running
    assert own_kafka.running


@pytest.mark.parametrize("end", mostly_slow(["kill", "stop"], ["kill"]))
def test_kafka_restarts_with_its_data_on_the_same_port(own_kafka: KafkaBroker, end: str) -> None:
    own_kafka.create_topic(f"before_{end}")
    produce(own_kafka.bootstrap, f"before_{end}")
    address, pid = own_kafka.bootstrap, own_kafka.pid
    getattr(own_kafka, end)()
    assert is_dead(pid)
    own_kafka.start()
    assert own_kafka.bootstrap == address
    assert f"before_{end}" in own_kafka.admin().list_topics(timeout=10).topics
    produce(address, f"before_{end}")


def test_a_paused_kafka_does_not_answer_until_resumed(own_kafka: KafkaBroker) -> None:
    own_kafka.pause()
    with pytest.raises(KafkaException):
        own_kafka.admin().list_topics(timeout=0.5)
    own_kafka.resume()
    assert own_kafka.admin().list_topics(timeout=10).brokers


def test_writes_to_a_denied_topic_are_refused(own_kafka: KafkaBroker) -> None:
    for topic in ("denied", "allowed"):
        own_kafka.create_topic(topic)
    admin = own_kafka.admin()
    deny = AclBinding(
        ResourceType.TOPIC,
        "denied",
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    for created in admin.create_acls([deny]).values():
        created.result(30)
    with pytest.raises(KafkaException) as caught:
        produce(own_kafka.bootstrap, "denied")
    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    produce(own_kafka.bootstrap, "allowed")


def test_properties_reach_the_broker(own_kafka: KafkaBroker) -> None:
    own_kafka.create_topic("small")
    with pytest.raises(KafkaException) as caught:
        produce(own_kafka.bootstrap, "small", b"x" * 60_000)
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_property_kafka_cannot_use_is_reported_with_its_log() -> None:
    broker = KafkaBroker(choice=ServerChoice.LOCAL, properties={"num.io.threads": "many"})
    with pytest.raises(StackError, match="ended while it was starting") as caught:
        broker.__enter__()
    assert "num.io.threads" in caught.value.why


def test_clients_use_the_advertised_proxy_and_direct_clients_bypass_it() -> None:
    with TcpProxy() as proxy, KafkaBroker(choice=ServerChoice.LOCAL, advertised_port=proxy.port) as broker:
        proxy.point_at(HOST, broker.port)
        broker.create_topic("proxied")
        assert broker.bootstrap == proxy.address
        assert proxy.connections == 0
        produce(broker.bootstrap, "proxied")
        assert proxy.cuts == 0
        proxy.cut()
        produce(broker.bootstrap, "proxied")
        proxy.refuse()
        proxy.cut()
        assert "proxied" in broker.admin().list_topics(timeout=10).topics


def test_two_stacks_at_once_are_independent() -> None:
    def identity(_: int) -> tuple[Any, ...]:
        with Stack(choice=ServerChoice.LOCAL) as stack:
            system = scalar(stack.postgres.dsn(), "SELECT system_identifier FROM pg_control_system()")
            ports = stack.postgres.port, stack.kafka.port
            return system, stack.kafka.cluster_id, *ports, stack.postgres.data_dir

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(identity, range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        reported = json.loads(owner.stdout.readline())
        assert not nothing_left(reported)
        owner.send_signal(signal.SIGKILL)
        wait_until(lambda: nothing_left(reported), what="the end of all servers")


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole run is a plain user's already")
def test_an_unprivileged_user_can_start_a_stack(own_kafka: KafkaBroker) -> None:
    user = unprivileged()
    assert user is not None
    home = Path(tempfile.mkdtemp())
    try:
        # Their cache has the jars already, because this test is not about downloading.
        for entry in (own_kafka._library, own_kafka._warm):
            shutil.copytree(entry, home / ".cache" / "tailrace" / entry.name)
        for path in (home, *home.rglob("*")):
            os.chown(path, user.uid, user.gid)
        package = Path(postgres.__file__).parents[3]
        as_user: dict[str, Any] = {
            "user": user.uid,
            "group": user.gid,
            "extra_groups": [],
            "cwd": "/",
            "env": {
                "HOME": str(home),
                "PATH": os.defpath,
                "PYTHONPATH": f"{package}:{sysconfig.get_path('purelib')}",
            },
        }
        python = interpreter_for(as_user)
        run = subprocess.run([python, "-c", OWNER], **as_user, input=b"", capture_output=True, check=False, timeout=120)
        assert run.returncode == 0, run.stderr.decode()
        reported = json.loads(run.stdout)
        assert (reported["uid"], reported["database"]) == (user.uid, "postgres")
        assert nothing_left(reported)
    finally:
        shutil.rmtree(home)


def interpreter_for(as_user: dict[str, Any]) -> str:
    """Returns a Python of our version that the user may run: ours may be below root's home."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, shutil.which(name, path=os.defpath + ":/usr/bin:/usr/local/bin")):
        if candidate is not None:
            try:
                if not subprocess.run([candidate, "-c", "import tailrace"], **as_user, check=False).returncode:
                    return candidate
            except PermissionError:
                continue
    pytest.skip(f"no {name} that a plain user may run")


def tailrace(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from tailrace.cli import main; main()", *arguments],
        env={**os.environ, "XDG_STATE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow
def test_the_stack_command_starts_once_and_stops(tmp_path: Path) -> None:
    def reported(*arguments: str) -> dict[str, Any]:
        run = tailrace("stack", *arguments, "--json", home=tmp_path)
        assert run.stdout, run.stderr
        answer: dict[str, Any] = json.loads(run.stdout)
        return answer

    try:
        assert reported("status") == {"up": False, "servers": []}
        first = reported("up")
        assert first["started"]
        again = reported("up")
        assert not again["started"]
        assert again["servers"] == first["servers"]
        assert reported("status")["up"]
        addresses = {server["server"]: server["address"] for server in first["servers"]}
        assert scalar(addresses["Postgres"], "SELECT 1") == 1
        exports = tailrace("stack", "up", "--export", home=tmp_path).stdout
        shell = ["sh", "-c", f'{exports}printf %s "$TAILRACE_STACK_POSTGRES"']
        assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == addresses["Postgres"]
        other = tailrace("stack", "up", "--postgres", "18", home=tmp_path)
        assert (other.returncode, other.stdout) == (3, "")
        assert "tailrace stack down" in other.stderr
        more = tailrace("stack", "up", "--mongo", home=tmp_path)
        assert (more.returncode, more.stdout) == (3, "")
        assert "without MongoDB" in more.stderr
        # One server dies: status reports it, and up starts a new stack.
        state = json.loads((tmp_path / "tailrace" / "stack.json").read_text())
        os.kill(state[0]["reaper"], signal.SIGKILL)
        wait_until(lambda: is_dead(state[0]["reaper"]))
        half = tailrace("stack", "status", home=tmp_path)
        assert half.returncode == 1
        assert reported("up")["started"]
        wait_until(lambda: is_dead(state[1]["reaper"]))
        state = json.loads((tmp_path / "tailrace" / "stack.json").read_text())
    finally:
        assert reported("down")["stopped"] == ["Postgres", "Kafka"]
    assert all(is_dead(entry["reaper"]) and not Path(entry["run_dir"]).exists() for entry in state)
    assert reported("down")["stopped"] == []
