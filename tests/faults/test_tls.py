"""A rejected certificate is reported as such with a remedy, not as an unavailable server."""

from __future__ import annotations

import asyncio
import gc
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import faust
import pytest
from psycopg.conninfo import make_conninfo

from helpers.command import Tailrace
from helpers.shop import Shop, close_shop, open_shop
from helpers.tls import FLAWS, HOST, Certificates, Flaw, TlsFront
from tailrace.errors import CertificateInvalid, KafkaUnavailable, TailraceError
from tailrace.kafka import tail
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.tail import ClusterObserver
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.app import projection_app
from tailrace.projections.faust.maintenance import Maintenance
from tailrace.projections.mongo.client import _connect, translated
from tailrace.projections.postgres.session import connect as connect_store
from tailrace.sources.mongo.client import connect, identify
from tailrace.sources.postgres.connection import PgConnection
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.topic_reader import header, read_all

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
OURS = "SELECT 1"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.mark.parametrize("flaw", FLAWS)
def test_postgres(postgres: PostgresServer, certificates: Certificates, flaw: Flaw) -> None:
    with TlsFront(certificates.server(flaw), postgres.port, postgres=True) as front:
        dsn = make_conninfo(
            postgres.dsn(), port=front.port, host=HOST, sslmode="verify-full", sslrootcert=str(certificates.authority)
        )
        for replication in (False, True):
            with pytest.raises(CertificateInvalid, match="Postgres") as caught:
                PgConnection(dsn, replication=replication, timeout=10)
            assert "sslrootcert" in caught.value.remedy
        with pytest.raises(CertificateInvalid, match="projection's database"):
            asyncio.run(connect_store(dsn, "summary", ""))
        front.context = certificates.server()
        with PgConnection(dsn, replication=False, timeout=10) as link:
            assert link.query(OURS) == [("1",)]
            assert (bool(link.pgconn.ssl_in_use), link.parameter("sslmode")) == (True, "verify-full")


@pytest.mark.parametrize("flaw", FLAWS)
def test_mongo(mongo: MongoServer, certificates: Certificates, flaw: Flaw) -> None:
    with TlsFront(certificates.server(flaw), mongo.port) as front:
        uri = f"mongodb://{HOST}:{front.port}/?directConnection=true&tls=true&tlsCAFile={certificates.authority}"
        with connect(uri, app_name="tls", timeout=1) as client:
            with pytest.raises(CertificateInvalid, match="MongoDB") as caught:
                identify(client)
            assert "tlsCAFile" in caught.value.remedy

        assert asyncio.run(as_a_projection(uri)) == "CertificateInvalid"
        with warnings.catch_warnings():
            # After a failed handshake, the driver's asynchronous client leaves its sockets to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        front.context = certificates.server()
        with connect(uri, app_name="tls", timeout=10) as client:
            assert identify(client).replica_set


async def as_a_projection(uri: str) -> str:
    """Connects as a store does; returns the error's name, because the error itself would hold the driver's sockets."""
    client = _connect(uri, "tls", 1, 1)
    try:
        with translated("asking"):
            await client.admin.command("hello")
    except TailraceError as error:
        return error.code
    finally:
        await client.close()
    return ""


@pytest.mark.parametrize("flaw", FLAWS)
def test_kafka(certificates: Certificates, flaw: Flaw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "LOOK_TIMEOUT", 2.0)
    with TlsFront(certificates.server(flaw)) as front:
        settings = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.authority)}
        with pytest.raises(CertificateInvalid, match="Kafka") as caught:
            ClusterObserver(KafkaOptions(f"{HOST}:{front.port}", "tls", settings=settings)).look()
        assert "ssl.ca.location" in caught.value.remedy


@pytest.mark.parametrize("flaw", FLAWS)
def test_kafka_of_a_projection(certificates: Certificates, flaw: Flaw) -> None:
    """The app ends instead of waiting for a broker that is available."""
    context = ssl.create_default_context(cafile=str(certificates.authority))
    with TlsFront(certificates.server(flaw)) as front:
        credentials = faust.SSLCredentials(context)
        app = projection_app("tls", broker=f"kafka://{HOST}:{front.port}", broker_credentials=credentials)
        with pytest.raises(CertificateInvalid, match=f"Kafka at {HOST}:{front.port}"):
            asyncio.run(app._wait_for_kafka())


def test_a_certificate_that_becomes_invalid_while_a_projection_runs(certificates: Certificates) -> None:
    """Kafka stops answering; reading the end offsets finds the reason."""

    class Silent:
        @property
        def offsets(self) -> Silent:
            return self

        async def ends_of(self, partitions: set[Partition]) -> dict[Partition, int]:
            raise KafkaUnavailable("no answer", remedy="Wait.")

        def reached(self) -> dict[Partition, int]:
            return {}

    context = ssl.create_default_context(cafile=str(certificates.authority))
    worker = SimpleNamespace(partition=Partition("orders", 0), queued=0, busy_since=None)
    with TlsFront(certificates.server("expired")) as front:
        credentials = faust.SSLCredentials(context)
        app = projection_app("tls", broker=f"kafka://{HOST}:{front.port}", broker_credentials=credentials)
        app.projections.append(SimpleNamespace(workers={worker.partition: worker}))  # type: ignore[arg-type]
        with pytest.raises(CertificateInvalid, match="Kafka at"):
            asyncio.run(Maintenance(app)._look_at_ends(Silent()))  # type: ignore[arg-type]


class Fronts:
    """A shop that reaches Postgres and Kafka over TLS with verified certificates."""

    def __init__(self, shop: Shop, certificates: Certificates, postgres: TlsFront, kafka: TlsFront) -> None:
        self.shop, self.certificates, self.postgres, self.kafka = shop, certificates, postgres, kafka


@pytest.fixture
def fronts(postgres: PostgresServer, certificates: Certificates, tmp_path: Path) -> Iterator[Fronts]:
    right = certificates.server()
    with (
        TlsFront(right, postgres.port, postgres=True) as database,
        TlsFront(right) as brokers,
        KafkaBroker(advertised_port=brokers.port, choice=ServerChoice.LOCAL) as kafka,
    ):
        brokers.target = kafka.port
        shop = open_shop(postgres, kafka, tmp_path)
        trusted = str(certificates.authority)
        dsn = make_conninfo(shop.dsn, port=database.port, host=HOST, sslmode="verify-full", sslrootcert=trusted)
        settings = {"security.protocol": "SSL", "ssl.ca.location": trusted}
        shop.configure(source={"postgres": dsn}, kafka={"bootstrap": kafka.bootstrap, "settings": settings})
        yield Fronts(shop, certificates, database, brokers)
        close_shop(shop)


def arrived(shop: Shop, event: str) -> None:
    """Waits until the event is published; reads without TLS, past the TLS proxy."""
    address = shop.kafka.direct_bootstrap
    wait_until(
        lambda: event in {header(each, "id") for each in read_all(address, [shop.topic])}, 60, what=f"the event {event}"
    )


@pytest.mark.slow
def test_a_pipeline_over_tls_until_a_certificate_expires(fronts: Fronts, tailrace: Tailrace) -> None:
    shop = fronts.shop
    connector = shop.start()
    first = shop.insert(VALID)
    arrived(shop, first)
    checks = {each["name"]: each for each in tailrace("check", shop.file)["checks"]}
    assert checks["postgres encryption"]["found"] == "TLS, sslmode=verify-full"
    assert connector.stop() == 0
    # Each start fails and names the server; with a valid certificate, no event is missing.
    for front, server in ((fronts.postgres, "Postgres"), (fronts.kafka, "Kafka")):
        front.context = fronts.certificates.server("expired")
        failing = shop.start(wait=False)
        failing.failed("CertificateInvalid")
        assert f"the certificate of {server} is not accepted" in failing.log
        front.context = fronts.certificates.server()
    second = shop.insert(VALID)
    shop.start()
    arrived(shop, second)
    # A certificate becomes invalid while the pipeline runs.
    running = shop.connectors[-1]
    fronts.postgres.context = fronts.certificates.server("name")
    fronts.postgres.cut()
    running.failed("CertificateInvalid")
