"""A physical standby of a Postgres server, and an address that moves to it in a failover."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psycopg.conninfo import make_conninfo

from helpers.shop import Shop, open_shop
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.stack.paths import new_folder, new_run_dir, unprivileged
from tailrace.testkit.stack.postgres import ENVIRONMENT
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.tcp_proxy import TcpProxy


class Standby(PostgresServer):
    """A standby made by pg_basebackup of a running `primary`, which it follows until it is promoted."""

    def __init__(self, primary: PostgresServer, settings: Mapping[str, str]) -> None:
        super().__init__(primary.version, settings={**primary.settings, **settings}, choice=ServerChoice.LOCAL)
        self._primary = primary

    def _create(self) -> None:
        user, primary = unprivileged(), self._primary
        assert primary.bin_dir is not None
        self.bin_dir = primary.bin_dir
        self._process = LocalProcess(
            "postgres", new_run_dir("postgres", user), user=user, stop_signal=signal.SIGINT, quit_signal=signal.SIGQUIT
        )
        self._parameters = dict(primary._parameters)
        new_folder(self.data_dir, user)
        # The synchronisation of slots needs the name of a database.
        command = [self.bin_dir / "pg_basebackup", f"--pgdata={self.data_dir}", f"--dbname={primary.dsn()}"]
        options = ["--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync"]
        self._process.run_to_end([*command, *options], ENVIRONMENT)

    def ask(self, question: str) -> Any:
        with self.connect() as connection:
            row = connection.execute(question).fetchone()  # type: ignore[call-overload]
            return None if row is None else row[0]

    def caught_up(self) -> None:
        """Waits until it has replayed all of the primary's log."""
        with self._primary.connect() as connection:
            end = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert end is not None
        wait_until(lambda: self.ask(f"SELECT pg_last_wal_replay_lsn() >= '{end[0]}'"), 60, what="the standby")

    def fall_behind(self) -> None:
        """Stops its replication."""
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self.ask("SELECT count(*) FROM pg_stat_wal_receiver") == 0, 60, what="the receiver's end")

    def promote(self) -> None:
        assert self.ask("SELECT pg_promote()")
        wait_until(lambda: not self.ask("SELECT pg_is_in_recovery()"), 60, what="the promotion")


class Pair:
    """A primary, its standby, and a shop that uses the address of the current primary."""

    def __init__(self, primary: PostgresServer, standby: Standby, proxy: TcpProxy, shop: Shop) -> None:
        self.primary = primary
        self.standby = standby
        self.proxy = proxy
        self.shop = shop

    def fail_over(self, before: Callable[[], None] = lambda: None) -> None:
        """`before` is called after the address has moved and before the standby is promoted."""
        self.primary.kill()
        self.proxy.point_at(self.standby.host, self.standby.port)
        self.proxy.cut()
        before()
        self.standby.promote()
        for writer in self.shop.writers:
            writer.stop()  # its connection is gone; it makes another
        self.shop.postgres = self.standby


@contextmanager
def open_pair(
    version: str,
    kafka: KafkaBroker,
    folder: Path,
    *,
    settings: Mapping[str, str] | None = None,
    standby: Mapping[str, str] | None = None,
    prepare: str = "SELECT 1",
) -> Iterator[Pair]:
    """`settings` are for both, `standby` only for the standby; the primary executes `prepare` before the backup."""
    with PostgresServer(version, choice=ServerChoice.LOCAL, settings=dict(settings or {})) as primary:
        shop = open_shop(primary, kafka, folder)
        with primary.connect() as connection:
            connection.execute(prepare)  # type: ignore[call-overload]
        with (
            Standby(primary, dict(standby or {})) as other,
            TcpProxy((primary.host, primary.port)) as proxy,
        ):
            shop.dsn = make_conninfo(shop.dsn, host=proxy.host, port=proxy.port)
            shop.configure(source={"postgres": shop.dsn})
            try:
                yield Pair(primary, other, proxy, shop)
            finally:
                shop.close()
