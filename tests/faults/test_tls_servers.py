"""TLS of the servers themselves: certificates that are refused, client certificates, and renewal while a pipeline runs.

`test_tls.py` presents the same flaws through a TLS proxy, where a test can change the certificate at any moment.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from helpers.secure_kafka import PASSWORD, SecureBroker
from helpers.secure_servers import TlsMongo, TlsPostgres, TlsRegistry
from helpers.service import Service
from helpers.shop import Shop, close_shop, open_shop
from helpers.tls import FLAWS, HOST, Certificates, Flaw, TlsFront
from helpers.users import close_users, open_users
from helpers.webhook import HandClock, Hook
from tailrace.errors import (
    AccessRefused,
    CertificateInvalid,
    PublishError,
    RegistryRefused,
    RegistryUnavailable,
    SourceUnavailable,
)
from tailrace.kafka import tail
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.tail import ClusterObserver
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions
from tailrace.sources.mongo.client import connect, identify
from tailrace.sources.postgres.connection import PgConnection
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.worker.webhook import CallOutcome, WebhookCaller, WebhookOptions

pytestmark = pytest.mark.slow
"""Three servers with TLS of their own. test_tls.py has the same certificates before plain servers."""
VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
ACLS = [f"--operation All {kind} '*'" for kind in ("--topic", "--group", "--transactional-id")]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Another authority, which no server trusts."""
    return Certificates(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[SecureBroker]:
    with SecureBroker(certificates) as broker:
        broker.grant("tailrace", ACLS)
        broker.grant("plain", ACLS)
        broker.add_user("tailrace")
        yield broker


@pytest.fixture(scope="module")
def database(certificates: Certificates) -> Iterator[TlsPostgres]:
    with TlsPostgres(certificates) as server:
        yield server


@pytest.fixture(scope="module")
def tls_mongo(certificates: Certificates) -> Iterator[TlsMongo]:
    with TlsMongo(certificates, auth=True) as server:
        yield server


def observe(kafka: dict[str, object]) -> None:
    settings = kafka["settings"]
    assert isinstance(settings, dict)
    ClusterObserver(KafkaOptions(str(kafka["bootstrap"]), "tls", settings=settings)).look()


@pytest.mark.parametrize(
    "flaw", [pytest.param(flaw, marks=[] if flaw == "expired" else [pytest.mark.slow]) for flaw in FLAWS]
)
def test_kafka(broker: SecureBroker, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, flaw: Flaw) -> None:
    monkeypatch.setattr(tail, "LOOK_TIMEOUT", 3.0)
    observe(broker.scram("tailrace"))
    broker.renew("SCRAM", certificates.files("broker", flaw))
    try:
        with pytest.raises(CertificateInvalid, match="Kafka") as caught:
            observe(broker.scram("tailrace"))
        assert "ssl.ca.location" in caught.value.remedy
    finally:
        broker.renew("SCRAM", certificates.files("broker"))
    observe(broker.scram("tailrace"))


def test_logins_to_kafka(
    broker: SecureBroker, certificates: Certificates, stranger: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By client certificate, SCRAM and PLAIN; what is wrong is named, and the password is not."""
    monkeypatch.setattr(tail, "LOOK_TIMEOUT", 3.0)
    observe(broker.tls(certificates.files("tailrace")))
    observe(broker.scram("tailrace"))
    observe(broker.scram("plain", mechanism="PLAIN"))
    for refused in (certificates.files("tailrace", "expired"), stranger.files("tailrace")):
        with pytest.raises(CertificateInvalid, match="alert") as invalid:
            observe(broker.tls(refused))
        assert "ssl.certificate.location" in invalid.value.remedy
    for wrong in (broker.scram("tailrace", "wrong-4711"), broker.scram("plain", "wrong-4711", "PLAIN")):
        with pytest.raises(PublishError) as caught:
            observe(wrong)
        assert "SASL" in caught.value.remedy
        assert "wrong-4711" not in str(caught.value)


@pytest.mark.parametrize("flaw", FLAWS)
def test_postgres(database: TlsPostgres, certificates: Certificates, flaw: Flaw) -> None:
    database.renew(certificates.files("postgres", flaw))
    try:
        with pytest.raises(CertificateInvalid, match="Postgres"):
            PgConnection(database.dsn(), replication=True, timeout=10)
    finally:
        database.renew(certificates.files("postgres"))
    with PgConnection(database.dsn(), replication=True, timeout=10) as link:
        assert link.pgconn.ssl_in_use


@pytest.mark.parametrize("flaw", FLAWS)
def test_mongodb(tls_mongo: TlsMongo, certificates: Certificates, flaw: Flaw) -> None:
    def is_accepted() -> bool:
        with connect(tls_mongo.uri, app_name="tls", timeout=3) as client:
            try:
                return bool(identify(client).replica_set)
            except CertificateInvalid:
                return False

    # MongoDB refuses to use a certificate that has expired already.
    expires = flaw == "expired"
    tls_mongo.renew(certificates.files("mongo", days=3 / 86400) if expires else certificates.files("mongo", flaw))
    try:
        wait_until(lambda: not is_accepted(), 30, what="a refusal")
        with connect(tls_mongo.uri, app_name="tls", timeout=3) as client, pytest.raises(CertificateInvalid) as caught:
            identify(client)
        assert "MongoDB" in caught.value.what
        assert "tlsCAFile" in caught.value.remedy
    finally:
        tls_mongo.renew(certificates.files("mongo"))
    assert is_accepted()


def test_logins_to_mongodb(tls_mongo: TlsMongo, certificates: Certificates, stranger: Certificates) -> None:
    """With a password over TLS, and with a certificate (X.509)."""
    with connect(tls_mongo.uri, app_name="tls", timeout=10) as client:
        assert identify(client).replica_set
    own = certificates.files("tailrace")
    with tls_mongo.client() as admin:
        admin["$external"].command("createUser", "CN=tailrace", roles=[{"role": "readAnyDatabase", "db": "admin"}])
    uri = f"mongodb://{HOST}:{tls_mongo.port}/?replicaSet={tls_mongo.set_name}&{tls_mongo.trust}"
    x509 = f"{uri}&authMechanism=MONGODB-X509&tlsCertificateKeyFile="
    with connect(x509 + str(own.both), app_name="tls", timeout=10) as client:
        assert identify(client).replica_set
    unknown = x509 + str(certificates.files("another").both)
    with connect(unknown, app_name="tls", timeout=10) as client, pytest.raises(AccessRefused):
        identify(client)
    for wrong in (stranger.files("tailrace"), certificates.files("tailrace", "expired")):
        # MongoDB closes the connection without saying why.
        with connect(x509 + str(wrong.both), app_name="tls", timeout=2) as client, pytest.raises(SourceUnavailable):
            identify(client)
    untrusting = uri.replace(str(certificates.authority), str(stranger.authority))
    with connect(untrusting, app_name="tls", timeout=2) as client, pytest.raises(CertificateInvalid):
        identify(client)


@pytest.mark.parametrize("flaw", ["", *FLAWS])
def test_the_webhook(certificates: Certificates, monkeypatch: pytest.MonkeyPatch, flaw: Flaw) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    with Hook(HandClock(), tls=certificates.server(flaw)) as hook:
        result = WebhookCaller(WebhookOptions(f"https://{HOST}:{hook.port}/secret-path", {})).post(b"{}", 10)
    if flaw:
        assert result.outcome is CallOutcome.FAILED
        assert "certificate is not accepted" in result.detail
    else:
        assert result.outcome is CallOutcome.DELIVERED
    assert "secret-path" not in result.detail


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_registry_with_a_flawed_certificate(certificates: Certificates, flaw: Flaw) -> None:
    trust = {"ssl.ca.location": str(certificates.authority)}
    with TlsRegistry(certificates, flaw) as server:
        options = RegistryOptions(server.secure_url, trust, timeout=20)
        with RegistryClient(options) as client, pytest.raises(RegistryRefused, match="no trusted"):
            client.subjects()


@pytest.mark.slow
def test_the_registry(certificates: Certificates, stranger: Certificates) -> None:
    """Its own TLS; and client certificates, through a proxy before it."""
    trust = {"ssl.ca.location": str(certificates.authority)}
    with TlsRegistry(certificates) as server:
        with RegistryClient(RegistryOptions(server.secure_url, trust, timeout=20)) as client:
            assert client.subjects() == []
        other = {"ssl.ca.location": str(stranger.authority)}
        with RegistryClient(RegistryOptions(server.secure_url, other)) as client, pytest.raises(RegistryRefused):
            client.subjects()
        path = server.url.partition(str(server.port))[2]
        with TlsFront(certificates.server_for_clients(), server.port) as front:
            url = f"https://{HOST}:{front.port}{path}"
            own = certificates.files("tailrace")
            login = {"ssl.certificate.location": str(own.certificate), "ssl.key.location": str(own.key)}
            with RegistryClient(RegistryOptions(url, {**trust, **login})) as client:
                assert client.subjects() == []
            refusals = (RegistryRefused, RegistryUnavailable)
            with RegistryClient(RegistryOptions(url, trust)) as client, pytest.raises(refusals):
                client.subjects()


def arrived(service: Service, event: str, key: str) -> None:
    connector = service.connectors[-1]

    def there() -> bool:
        found = {header(each, key) for each in read_all(service.kafka.bootstrap, [service.topic])}
        return event in found or not connector.running

    wait_until(there, 60, what=f"the event {event}")
    assert connector.running, connector.log


@pytest.fixture
def shop(database: TlsPostgres, broker: SecureBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(database, broker, tmp_path)
    shop.configure(kafka=broker.scram("tailrace"))
    yield shop
    close_shop(shop)


@pytest.mark.slow
def test_certificates_are_renewed_while_a_pipeline_runs_until_one_expires(
    shop: Shop, database: TlsPostgres, broker: SecureBroker, certificates: Certificates
) -> None:
    connector = shop.start()
    arrived(shop, shop.insert(VALID), "id")
    database.renew(certificates.files("postgres"))
    broker.renew("SCRAM", certificates.files("broker"))
    # New connections to both servers: the pipeline's sessions end, and the broker starts again.
    shop.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tailrace'")
    arrived(shop, shop.insert(VALID), "id")
    assert connector.running
    broker.renew("SCRAM", certificates.files("broker", "expired"))
    broker.stop()
    broker.start()
    connector.failed("CertificateInvalid")
    assert "the certificate of Kafka is not accepted" in connector.log
    assert PASSWORD not in connector.log
    broker.renew("SCRAM", certificates.files("broker"))
    event = shop.insert(VALID)
    shop.start()
    arrived(shop, event, "id")


@pytest.mark.slow
def test_a_pipeline_of_mongodb_with_the_printed_rights(
    tls_mongo: TlsMongo, broker: SecureBroker, certificates: Certificates, tmp_path: Path
) -> None:
    """Over TLS, logged in by certificate, with find and changeStream on the one collection."""
    from tailrace.outbox.mongosh import user_commands

    users = open_users(tls_mongo, broker, tmp_path)
    try:
        own = certificates.files("pipeline")
        role = f"tails_{users.name}"
        [printed, _] = user_commands(users.database, "outbox", role, "unused")
        with tls_mongo.client() as admin:
            admin[printed.database].command(printed.body)
            admin["$external"].command("createUser", "CN=pipeline", roles=[{"role": role, "db": printed.database}])
        login = f"&authMechanism=MONGODB-X509&tlsCertificateKeyFile={own.both}"
        uri = f"mongodb://{HOST}:{tls_mongo.port}/?replicaSet={tls_mongo.set_name}&{tls_mongo.trust}{login}"
        users.configure(source={"mongo": uri, "create": False}, kafka=broker.scram("tailrace"))
        users.start()
        arrived(users, users.insert(), "id")
        with tls_mongo.client() as admin:
            admin[printed.database].command(
                "revokePrivilegesFromRole",
                role,
                privileges=[
                    {"resource": {"db": users.database, "collection": "outbox"}, "actions": ["changeStream"]},
                ],
            )
        users.connectors[-1].stop()
        users.start(wait=False).failed("AccessRefused")
        assert "changeStream" in users.connectors[-1].log
    finally:
        close_users(users)


def test_a_password_in_a_connection_string_is_never_shown(database: TlsPostgres, stranger: Certificates) -> None:
    wrong = make_conninfo(database.dsn(), password="wrong-0815", sslrootcert=str(stranger.authority))
    with pytest.raises(CertificateInvalid) as caught:
        PgConnection(wrong, replication=False, timeout=10)
    assert "wrong-0815" not in str(caught.value)


def test_tls_is_demanded(database: TlsPostgres) -> None:
    """The server itself refuses a connection without TLS: what the tests above encrypt could not be plain."""
    with pytest.raises(AccessRefused, match="no encryption"):
        PgConnection(database.dsn(sslmode="disable"), replication=False, timeout=10)
    assert ssl.HAS_TLSv1_2
