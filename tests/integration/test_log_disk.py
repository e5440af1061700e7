"""The disk of the server's log is checked only if the server runs on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.sources.postgres import probes
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.feedback import Feedback
from tailrace.sources.postgres.probes import free_bytes, log_folder
from tailrace.sources.postgres.replay_window import ReplayWindow, WindowTracker

MB = 1 << 20


def test_a_server_on_this_machine_is_recognised_by_our_port(database: str, tmp_path: Path) -> None:
    with PgConnection(database, replication=False, timeout=10) as link:
        folder = log_folder(link)
        assert folder is not None
        assert str(folder) == link.query("SHOW data_directory")[0][0]
        process, port = (str(value) for value in link.query("SELECT pg_backend_pid(), inet_client_port()")[0])
        # Without such a process, or with another process of that pid, the server runs elsewhere.
        assert log_folder(link, tmp_path) is None
        title = tmp_path / process / "cmdline"
        title.parent.mkdir()
        for process_title, known in [
            (f"postgres: u d 127.0.0.1({port}) idle", True),
            ("postgres: u d 127.0.0.1(1) idle", False),
            ("postgres: u d [local] idle", False),
            (f"nginx: 127.0.0.1({port})", False),
        ]:
            title.write_text(process_title)
            assert (log_folder(link, tmp_path) is not None) == known, process_title


def test_a_role_without_the_privilege_to_read_the_data_directory(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS sees_little")
        connection.execute("CREATE ROLE sees_little LOGIN PASSWORD 'p'")
    with PgConnection(make_conninfo(database, user="sees_little", password="p"), replication=False, timeout=10) as link:
        assert log_folder(link) is None


def test_free_bytes_are_those_of_the_log_disk_or_of_the_data_disk(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    free = free_bytes(tmp_path)
    assert free is not None
    assert abs(free - found.f_bavail * found.f_frsize) < found.f_blocks * found.f_frsize / 10
    (tmp_path / "pg_wal").symlink_to("/proc")  # a file system that is always full
    assert free_bytes(tmp_path) == 0
    assert free_bytes(tmp_path / "gone") is None


def test_the_replay_window_is_given_up_on_a_full_disk_with_one_warning(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pg_wal").symlink_to("/proc")
    monkeypatch.setattr(probes, "log_folder", lambda link: tmp_path)
    start = LsnPosition(LogIdentity("7", 1, "shop", "s", "public.outbox", "1"), 10 * MB, 0)
    warnings: list[str] = []
    holding = WindowTracker(ReplayWindow(size=100 * MB), 0, start, ())
    feedback = Feedback("s", start, confirmed=0, window=holding, warn=warnings.append)
    with PgConnection(database, replication=False, timeout=10) as link:
        feedback.find_disk(link)
        assert not feedback.advance(start), "without a probe, nothing is known about the disk"
        assert feedback.probe(link), "the log up to there is confirmed"
    assert holding.held == start.lsn
    assert feedback.advance(LsnPosition(start.log, 20 * MB, 0))
    assert len(warnings) == 1
    assert "free on the disk" in warnings[0]
