"""The main route with every connection encrypted and verified, and with no right that docs/security.md does not list.

Postgres, Kafka and the registry have their own TLS, and Kafka denies everything without an ACL. The role of Postgres
has what `tailrace outbox ddl` prints, and logs in with a certificate; so does the pipeline's principal of Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from helpers.command import Tailrace
from helpers.projection import Worker
from helpers.secure_kafka import PASSWORD, SecureBroker
from helpers.secure_servers import TlsPostgres, TlsRegistry
from helpers.service import Connector
from helpers.shop import Shop, close_shop, open_shop
from helpers.tls import HOST, CertificateFiles, Certificates, TlsFront
from helpers.webhook import HandClock, Hook
from tailrace.outbox.ddl import grants_ddl, hba_lines
from tailrace.testkit.oracle import check_delivery
from tailrace.testkit.stack import PostgresServer, wait_until
from tailrace.testkit.topic_reader import consumed_records, header, read_all

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
ROLE = "tailrace"
VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
INVALID = '{"order": "a"}'


def printed_acls(section: str, function: str) -> list[str]:
    """Returns the arguments of `kafka-acls` in a block of the page, without the principal."""
    block = PAGE.read_text(encoding="utf-8").partition(f"<!-- acls: {section} -->")[2].split("```")[1]
    found = re.findall(rf"^{function} (--.*)$", block, re.MULTILINE)
    assert found
    return found


PIPELINE, PROJECTION = printed_acls("pipeline", "run"), printed_acls("projection", "project")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def identity(certificates: Certificates) -> CertificateFiles:
    """The certificate of the pipeline, for Postgres, Kafka and the registry."""
    return certificates.files(ROLE)


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[SecureBroker]:
    with SecureBroker(certificates) as broker:
        yield broker


@pytest.fixture(scope="module")
def database(certificates: Certificates) -> Iterator[TlsPostgres]:
    hba = [*hba_lines(ROLE).splitlines()[:2], f"hostssl all {ROLE} 127.0.0.1/32 cert"]
    with TlsPostgres(certificates, hba=[line.lstrip("- ") for line in hba]) as server:
        yield server


@dataclass
class Secured:
    """A shop whose pipeline has another name than its topics, and its own names in the printed ACLs."""

    shop: Shop
    broker: SecureBroker
    pipeline: str

    def acls(self, printed: list[str]) -> list[str]:
        names = {"orders": self.pipeline, "shop": self.shop.name, "order-summary": f"app-{self.shop.name}"}
        words = r"(?<=--transactional-id )orders|(?<=--topic )orders(?=\.)|(?<=--topic )shop(?=\.)|order-summary"
        return [re.sub(words, lambda found: names[found[0]], line) for line in printed]

    def grant(self, printed: list[str]) -> None:
        self.broker.revoke_all()
        self.broker.grant(ROLE, self.acls(printed))

    def events(self, topic: str) -> set[str]:
        return {header(each, "id") for each in read_all(self.broker.bootstrap, [topic])}

    def arrived(self, event: str, topic: str = "") -> None:
        connector = self.shop.connectors[-1]
        wait_until(lambda: event in self.events(topic or self.shop.topic) or not connector.running, 60, what=event)
        assert event in self.events(topic or self.shop.topic), connector.log

    @property
    def letters(self) -> str:
        return f"{self.pipeline}.dead-letters"


@pytest.fixture
def secured(
    database: TlsPostgres, broker: SecureBroker, identity: CertificateFiles, tmp_path: Path
) -> Iterator[Secured]:
    shop = open_shop(database, broker, tmp_path)
    pipeline = shop.name.replace("shop_", "pipe_")
    with psycopg.connect(shop.dsn, autocommit=True) as owner:
        owner.execute(grants_ddl("public.outbox", ROLE, f"tailrace_{pipeline}"))  # type: ignore[call-overload]
    trust = {"sslmode": "verify-full", "sslrootcert": str(database.certificates.authority)}
    own = {"sslcert": str(identity.certificate), "sslkey": str(identity.key)}
    dsn = make_conninfo("", host=HOST, port=database.port, dbname=shop.name, user=ROLE, **trust, **own)
    del shop.settings["kafka"]["dead_letter_topic"]
    shop.configure(pipeline=pipeline, source={"postgres": dsn, "start": "beginning"}, kafka=broker.tls(identity))
    secured = Secured(shop, broker, pipeline)
    yield secured
    broker.revoke_all()
    close_shop(shop)


@pytest.fixture
def hook(certificates: Certificates) -> Iterator[Hook]:
    with Hook(HandClock(), tls=certificates.server()) as hook:
        yield hook


@pytest.fixture(scope="module")
def registry(certificates: Certificates) -> Iterator[TlsFront]:
    """A registry with TLS, which also demands a client certificate."""
    with TlsRegistry(certificates) as server, TlsFront(certificates.server_for_clients(), server.port) as front:
        front.path = server.url.partition(str(server.port))[2]  # type: ignore[attr-defined]
        front.direct = server.secure_url  # type: ignore[attr-defined]
        yield front


def test_the_main_route_is_encrypted_and_has_only_the_printed_rights(
    secured: Secured,
    registry: TlsFront,
    hook: Hook,
    identity: CertificateFiles,
    tailrace: Tailrace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    shop, broker = secured.shop, secured.broker
    authority = str(broker.certificates.authority)
    monkeypatch.setenv("SSL_CERT_FILE", authority)  # for the webhook
    trusting = {
        "ssl.ca.location": authority,
        "ssl.certificate.location": str(identity.certificate),
        "ssl.key.location": str(identity.key),
    }
    url = f"https://{HOST}:{registry.port}{registry.path}"  # type: ignore[attr-defined]
    shop.configure(
        schemas={"registry": {"url": url, "subject": f"{shop.name}-{{type}}", "settings": trusting}},
        format={"schema_id": "prefix"},
        dead_letters={"webhook": {"url": f"https://{HOST}:{hook.port}/alerts"}},
    )
    secured.grant(PIPELINE)
    tailrace("schemas", "register", shop.file, "--yes")
    before = shop.insert(VALID)
    checks = tailrace("check", shop.file)["checks"]
    assert [each for each in checks if each["state"] == "FAIL"] == []
    found = {each["name"]: each["found"] for each in checks}
    assert found["postgres encryption"] == "TLS, sslmode=verify-full"

    connector = shop.start()
    secured.arrived(before)
    writer = shop.writer()
    for _ in range(40):
        writer.transaction()
    bad = shop.insert(INVALID)
    secured.arrived(bad, secured.letters)
    wait_until(lambda: len(hook.calls) > 0, 60, what="the call of the webhook")
    assert hook.calls[0]["reason"] == "schema_validation_failed"
    last = shop.insert(VALID)
    secured.arrived(last)
    published = consumed_records(read_all(broker.bootstrap, [shop.topic]))
    letters = consumed_records(read_all(broker.bootstrap, [secured.letters]))
    ours = {before, bad, last}
    verdict = check_delivery(
        writer.written,
        [each for each in published if each.id not in ours],
        [each for each in letters if each.id not in ours],
        in_table=shop.in_outbox() - ours,
    )
    assert verdict.ok, verdict

    [letter] = [each for each in tailrace("dlq", "list", shop.file)["letters"] if each["event_id"] == bad]
    corrected = tmp_path / "corrected.json"
    corrected.write_text(VALID)
    tailrace("dlq", "redrive", shop.file, letter["id"], "--payload", corrected, "--why", "a typo", "--yes")
    secured.arrived(bad)
    assert tailrace("verify", shop.file)["missing"] == 0
    planned = tailrace("replay", "plan", shop.file, "--from", "oldest", "--from-table", "--id", last)
    assert tailrace("replay", "apply", planned["file"])["published"] == 1
    assert tailrace("trace", before, shop.file)["records"]
    assert connector.waits == []
    assert connector.stop() == 0


RIGHTS = {
    "--transactional-id": ("PublishError", "transactional id"),
    "--topic tailrace-offsets": ("TopicRefused", "tailrace-offsets"),
    "--topic orders.": ("", "dead-letters"),
    "--topic shop.": ("TopicRefused", ".orders"),
    "--group": ("PublishError", "Describe on the consumer groups"),
}
"""The error without one of the printed lines, and what it names."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "right", [pytest.param(right, marks=[] if right == "--group" else [pytest.mark.slow]) for right in RIGHTS]
)
def test_each_right_of_a_pipeline_is_needed(secured: Secured, right: str) -> None:
    shop = secured.shop
    assert len(RIGHTS) == len(PIPELINE)
    left = [line for line in PIPELINE if right not in line]
    assert len(left) == len(PIPELINE) - 1
    secured.grant(left)
    error, named = RIGHTS[right]
    connector = shop.start(wait=False)
    shop.insert(INVALID)
    shop.insert(VALID)
    assert connector.ended(60) == 3
    assert f'"error": "{error}' in connector.log
    assert named in connector.log
    # With the right, the pipeline continues, and no event is missing.
    secured.grant(PIPELINE)
    event = shop.insert(VALID)
    shop.start()
    secured.arrived(event)
    assert shop.in_outbox() <= secured.events(shop.topic) | secured.events(secured.letters)


APP = """
from tailrace.projections import PostgresStore, Projection, projection_app
import faust, ssl

app = projection_app(
    {name!r}, broker="kafka://{address}",
    broker_credentials=faust.SASLCredentials(
        username={name!r}, password={password!r}, mechanism="SCRAM-SHA-256",
        ssl_context=ssl.create_default_context(cafile={authority!r}),
    ),
)
TABLES = "CREATE TABLE IF NOT EXISTS seen (id text PRIMARY KEY)"
projection = Projection(app, {topic!r}, store=PostgresStore({dsn!r}, schema={schema!r}, tables=TABLES), within=0.01)

@projection.on()
async def see(event, effects):
    if event.data.get("order") == "fails":
        raise ValueError("this one fails")
    await effects.execute("INSERT INTO seen VALUES (%s)", (event.id,))
"""


@pytest.fixture
def project(secured: Secured, postgres: PostgresServer, tmp_path: Path) -> Iterator[Projecting]:
    projecting = Projecting(secured, postgres, tmp_path)
    yield projecting
    for worker in projecting.workers:
        if worker.running:
            worker.kill()


class Projecting:
    """A projection whose user of Kafka logs in with SCRAM over TLS."""

    def __init__(self, secured: Secured, postgres: PostgresServer, folder: Path) -> None:
        self.name = f"app-{secured.shop.name}"
        self.dsn = postgres.dsn("postgres")
        self.schema = f"seen_{secured.shop.name}"
        self.workers: list[Connector] = []
        self._folder = folder
        self._module = f"module_{secured.shop.name}"
        (folder / f"{self._module}.py").write_text(
            APP.format(
                name=self.name,
                address=secured.broker.address("SCRAM"),
                password=PASSWORD,
                authority=str(secured.broker.certificates.authority),
                topic=secured.shop.topic,
                dsn=self.dsn,
                schema=self.schema,
            )
        )
        secured.broker.add_user(self.name)

    def start(self) -> Worker:
        log = self._folder / f"worker-{len(self.workers)}.log"
        worker = Worker(self._folder, log, f"{self._module}:app")
        self.workers.append(worker)
        return worker

    def seen(self) -> set[str]:
        with psycopg.connect(self.dsn) as connection:
            try:
                return {row[0] for row in connection.execute(f'SELECT id FROM "{self.schema}".seen')}  # type: ignore[call-overload]
            except psycopg.errors.UndefinedTable:
                return set()


@pytest.mark.slow
def test_a_projection_has_only_the_printed_rights(secured: Secured, project: Projecting) -> None:
    shop = secured.shop
    secured.grant(PIPELINE)
    shop.start()
    first = shop.insert(VALID)
    secured.arrived(first)
    # Without each of its rights, it ends and names what is missing.
    lines = secured.acls(PROJECTION)
    for missing, named in (("--group", "consumer group"), ("--topic shop.", "read the topics")):
        left = [line for line, printed in zip(lines, PROJECTION, strict=True) if missing not in printed]
        assert len(left) == len(lines) - 1
        secured.grant(PIPELINE)
        secured.broker.grant(project.name, left)
        worker = project.start()
        worker.failed("ReadRefused")
        assert named in worker.log
    secured.broker.grant(project.name, lines)
    project.start()
    second = shop.insert(VALID)
    wait_until(lambda: project.seen() >= {first, second}, 90, what="both events in the projection")
    failing = shop.insert(VALID.replace('"a"', '"fails"'))
    letters = f"{project.name}.dead-letters"
    wait_until(lambda: topic_exists(secured.broker.admin(), letters), 60)
    secured.arrived(failing, letters)


def topic_exists(admin: AdminClient, topic: str) -> bool:
    return topic in admin.list_topics(timeout=10).topics
