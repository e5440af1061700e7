"""Rows 14-18 of the fault matrix: Postgres crashes, shuts down, ends our session, or stops answering."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from helpers.shop import Connector, Shop, close_shop, open_shop
from helpers.tiers import mostly_slow
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.tcp_proxy import TcpProxy
from tailrace.testkit.workload.orders import Mix

LINK_TIMEOUT = 2
NOTICED_WITHIN = 25
"""Long enough for a loaded machine, and less than the default `link_timeout` of 30 s."""
STOPS_WITHIN = 20.0
"""Much longer than a shutdown takes, much shorter than `wal_sender_timeout`, which a silent client can delay it by."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that tests may kill; it would wait a minute for a silent client."""
    with PostgresServer("16", choice=ServerChoice.LOCAL, settings={"wal_sender_timeout": "60s"}) as server:
        yield server


@pytest.fixture
def own(server: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(server, kafka, tmp_path)
    yield shop
    close_shop(shop)


def starts(connector: Connector) -> int:
    return connector.log.count('"running"')


def reconnects(connector: Connector, before: int) -> None:
    wait_until(lambda: starts(connector) > before or not connector.running, 120, what="a new start")
    assert connector.running, connector.log


def published_more(shop: Shop, than: int, timeout: float = 120) -> int:
    """Waits for a stored position behind `than` and returns it."""
    return wait_until(
        lambda: at if (at := shop.positions()[-1].lsn) > than else 0,
        timeout,
        what=f"a stored position behind {than}; the log:\n{shop.connectors[-1].log}",
    )


def finish(shop: Shop) -> None:
    for writer in shop.writers:
        writer.stop()
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    assert verdict.committed > 0


def test_the_server_is_killed_under_load(own: Shop) -> None:
    """Row 14: writers and connector reconnect; the table shows what a COMMIT without an answer did."""
    connector = own.start()
    for _ in range(2):
        own.writer(mix=Mix(events_per_transaction=5)).start(rate=150)
    at = published_more(own, own.positions()[-1].lsn)
    before = starts(connector)
    own.postgres.kill()
    own.postgres.start()
    reconnects(connector, before)
    published_more(own, at)
    finish(own)


def test_a_slot_that_went_back_brings_no_duplicates(own: Shop) -> None:
    """Row 14: confirmations are written to disk lazily, so a crash loses some; the stored position is kept."""
    connector = own.start()
    writer = own.writer()
    own.execute("CHECKPOINT")
    for _ in range(3):
        writer.transaction(rollback=False)
        own.caught_up()
    at = own.positions()[-1].lsn
    wait_until(lambda: (own.confirmed_lsn() or 0) >= at, what="the confirmation")
    connector.process.send_signal(signal.SIGSTOP)
    own.postgres.kill()
    own.postgres.start()
    regressed = own.confirmed_lsn()
    assert regressed is not None
    assert regressed < at, "the slot did not go back: nothing is tested here"
    connector.process.send_signal(signal.SIGCONT)
    writer.transaction(rollback=False)
    finish(own)


@pytest.mark.parametrize("load", mostly_slow(["idle", "under load", "with a replay window"], ["under load"]))
def test_a_fast_shutdown_is_not_delayed(own: Shop, load: str) -> None:
    """Row 15: the server waits until its client has confirmed everything, so the client must confirm or disconnect."""
    if load == "with a replay window":
        own.configure(source={"replay_window": "1 GiB"})
    connector = own.start()
    writer = own.writer()
    writer.transaction(rollback=False)
    own.caught_up()
    if load == "under load":
        writer.start(rate=200)
        published_more(own, own.positions()[-1].lsn)
    before = starts(connector)
    held = own.confirmed_lsn()
    own.postgres.process.stop(timeout=STOPS_WITHIN)
    own.postgres.start()
    reconnects(connector, before)
    if load == "with a replay window":
        # The window was not given up for the shutdown.
        assert own.confirmed_lsn() == held
        assert own.positions()[-1].lsn > (held or 0)
    if load != "under load":
        writer.transaction(rollback=False)
    finish(own)


def test_sessions_ended_by_an_administrator(own: Shop) -> None:
    """Row 16: the walsender, then the control session."""
    connector = own.start()
    own.writer().start(rate=50)
    for victim in ("walsender", "client backend"):
        before = starts(connector)
        own.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = %s AND datname = %s AND application_name = 'tailrace'",
            victim, own.name,
        )  # fmt: skip
        if victim == "client backend":
            # It is used only for a relation message or an idle position; an added column causes the former.
            own.execute("ALTER TABLE outbox ADD COLUMN more text")
        reconnects(connector, before)
    finish(own)


def behind(shop: Shop, proxy: TcpProxy) -> str:
    """Returns the connection string through the proxy; the oracle and writers connect to the server directly."""
    proxy.point_at(shop.postgres.host, shop.postgres.port)
    return make_conninfo(shop.dsn, host=proxy.host, port=proxy.port)


def test_a_half_open_connection(own: Shop) -> None:
    """Row 18: no data and no error. It is noticed within `link_timeout`, and nothing is lost or duplicated."""
    with TcpProxy() as proxy:
        own.configure(source={"postgres": behind(own, proxy), "link_timeout": LINK_TIMEOUT})
        connector = own.start()
        own.writer().start(rate=100)
        published_more(own, own.positions()[-1].lsn)
        before = starts(connector)
        proxy.blackhole()
        connector.says('"SourceUnavailable"', timeout=NOTICED_WITHIN)
        proxy.restore()
        reconnects(connector, before)
        finish(own)
        own.close()


def test_a_connection_that_hangs_during_the_start(own: Shop) -> None:
    """Row 18: the login hangs; once the connection works again, it starts normally."""
    with TcpProxy() as proxy:
        own.configure(source={"postgres": behind(own, proxy), "link_timeout": LINK_TIMEOUT})
        proxy.blackhole()
        connector = own.start(wait=False)
        connector.says('"SourceUnavailable"', timeout=NOTICED_WITHIN)
        proxy.restore()
        connector.says('"running"')
        own.writer().transaction(rollback=False)
        finish(own)
        own.close()


def test_a_control_session_that_stops_answering(own: Shop) -> None:
    """Row 18: streaming continues, but a catalog query is never answered."""
    with TcpProxy() as proxy:
        own.configure(source={"postgres": behind(own, proxy), "link_timeout": LINK_TIMEOUT})
        connector = own.start()
        writer = own.writer()
        writer.transaction(rollback=False)
        own.caught_up()
        control = own.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = %s "
            "AND application_name = 'tailrace'",
            own.name,
        )[0][0]
        before = starts(connector)
        own.postgres.process._signal(signal.SIGSTOP, control)
        try:
            own.execute("ALTER TABLE outbox ADD COLUMN more text")
            writer.transaction(rollback=False)
            reconnects(connector, before)
        finally:
            own.postgres.process._signal(signal.SIGCONT, control)
        assert "did not answer" in connector.log
        finish(own)
        own.close()


@pytest.mark.slow
def test_the_session_survives_while_publishing_is_paused(tmp_path: Path) -> None:
    """Row 19 in small: Kafka hangs with a full batch pending for much longer than the server's timeout."""
    patience = timedelta(seconds=2)
    settings = {"wal_sender_timeout": f"{patience.total_seconds():.0f}s"}
    with (
        PostgresServer("16", choice=ServerChoice.LOCAL, settings=settings) as postgres,
        KafkaBroker(choice=ServerChoice.LOCAL) as kafka,
        closing(open_shop(postgres, kafka, tmp_path)) as shop,
    ):
        shop.configure(limits={"batch_records": 5})
        connector = shop.start()
        writer = shop.writer()
        writer.transaction(rollback=False)
        shop.caught_up()

        def session() -> tuple[int, datetime]:
            found = shop.execute("SELECT pid, reply_time FROM pg_stat_replication WHERE application_name = 'tailrace'")
            assert found, f"the session has ended:\n{connector.log}"
            return found[0]

        pid, since = session()
        kafka.pause()
        for _ in range(20):
            writer.transaction(5, rollback=False)
        # The server sees its status updates until it has lasted for three times the timeout.
        wait_until(lambda: session()[1] - since > 3 * patience, 60, what="signs of life")
        kafka.resume()
        verdict = shop.caught_up()
        assert verdict.ok, verdict
        assert session()[0] == pid
        assert starts(connector) == 1
