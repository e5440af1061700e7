"""A role of Postgres that logs in with tokens: each new connection asks for one, and an old one is of no use."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from helpers.command import Tailrace
from helpers.shop import Shop
from helpers.token_package import install_provider
from tailrace.outbox.ddl import grants_ddl
from tailrace.testkit.stack import PostgresServer, wait_until
from tailrace.testkit.topic_reader import header, read_all

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
PROVIDER = """
import secrets, time
from pathlib import Path
import psycopg
from psycopg import sql
from tailrace.auth.tokens import AccessToken

def token(request):
    assert request.service == "postgres"
    password = secrets.token_hex(12)
    with psycopg.connect(request.options["administrator"], autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(request.user), sql.Literal(password)))
    with Path(request.options["log"]).open("a") as log:
        log.write(f"{request.user} {password}\\n")
    return AccessToken(password, time.time() + 900)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a provider whose tokens are valid until the next one."""
    return install_provider(tmp_path, "rotating", PROVIDER, monkeypatch)


def test_each_connection_gets_its_own_token(
    shop: Shop, postgres: PostgresServer, package: Path, tmp_path: Path, tailrace: Tailrace
) -> None:
    role, log = f"tokens_{shop.name}", tmp_path / "tokens.log"
    with psycopg.connect(shop.dsn, autocommit=True) as owner:
        owner.execute(grants_ddl("public.outbox", role, f"tailrace_{shop.name}"))  # type: ignore[call-overload]
    given = {**conninfo_to_dict(shop.dsn), "user": role}
    given.pop("password")
    options = {"administrator": postgres.dsn(), "log": str(log)}
    shop.configure(
        source={"postgres": make_conninfo("", **given), "auth": {"provider": "rotating", "options": options}}
    )
    try:
        checks = tailrace("check", shop.file)["checks"]
        assert [each for each in checks if each["state"] == "FAIL"] == []
        [pipeline] = tailrace("doctor", shop.file)["pipelines"]
        assert [each for each in pipeline["findings"] if each["code"] == "not-checked"] == []
        asked = len(log.read_text().splitlines())
        assert asked >= 2
        connector = shop.start(program=[str(package)])
        event = shop.insert(VALID)
        wait_until(
            lambda: event in {header(each, "id") for each in read_all(shop.kafka.bootstrap, [shop.topic])}, what=event
        )
        tokens = [line.split() for line in log.read_text().splitlines()]
        assert len(tokens) > asked
        assert {user for user, _ in tokens} == {role}
        assert len({token for _, token in tokens}) == len(tokens)
        assert connector.waits == []
        assert not any(token in connector.log for _, token in tokens)
        assert connector.stop() == 0
    finally:
        shop.close()
        with psycopg.connect(shop.dsn, autocommit=True) as owner:
            owner.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
