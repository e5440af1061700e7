"""`StackServer` with a tiny server: readiness, restarts, retries with other ports, and errors."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tailrace.testkit.stack import ServerChoice, StackError
from tailrace.testkit.stack.paths import quiet
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.server import PORT_ATTEMPTS, StackServer

# Listens on the given port and sends its word to every client; without a port it ends at once.
PROGRAM = """
import socket, sys
if len(sys.argv) < 3:
    sys.exit("no port for me")
with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as listener:
    while True:
        talk, _ = listener.accept()
        talk.sendall(sys.argv[1].encode())
        talk.close()
"""


class Parrot(StackServer):
    """A server that answers with `word`."""

    NAME = "the parrot"
    VARIABLE = "TAILRACE_STACK_PARROT"
    START_TIMEOUT = 30.0

    def __init__(
        self, run_dir: Path, offers: Sequence[int], word: str = "hello", choice: ServerChoice = ServerChoice.LOCAL
    ) -> None:
        super().__init__(choice, "nowhere", quiet)
        self.offers = list(offers)
        self.word = word
        self.ports: list[int] = []
        self.tries = 0
        self._run_dir = run_dir

    def _create(self) -> None:
        self._process = LocalProcess("parrot", self._run_dir)

    def _assign_ports(self) -> Sequence[int]:
        self.tries += 1
        self.ports = self.offers[:1]
        del self.offers[:1]
        return self.ports

    def _launch(self) -> None:
        self.process.launch([sys.executable, "-c", PROGRAM, self.word, *map(str, self.ports)], {})

    def _not_ready(self) -> str | None:
        try:
            with socket.create_connection((HOST, self.ports[0]), timeout=5) as talk:
                return None if talk.recv(100) == b"hello" else ""
        except (OSError, IndexError) as exc:
            return f"no answer: {exc}"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The run directory of the server, which removes it."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another server listens on, which never answers."""
    with socket.create_server((HOST, free_port())) as listener:
        yield listener.getsockname()[1]


def test_a_killed_server_is_restarted_on_the_same_port(run_dir: Path) -> None:
    with Parrot(run_dir, [port := free_port()]) as parrot:
        first = parrot.pid
        parrot.kill()
        assert not parrot.running
        assert parrot._not_ready()
        parrot.start()
        assert parrot.ports == [port]
        assert parrot.pid != first
        with pytest.raises(StackError, match="already running"):
            parrot.start()
    assert not run_dir.exists()
    with pytest.raises(StackError, match="the parrot is not local, or not started"):
        parrot.kill()


def test_a_server_whose_port_is_taken_is_started_on_another(
    run_dir: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test must not wait for the other server: only its port matters here.
    monkeypatch.setattr(Parrot, "_not_ready", lambda parrot: "" if parrot.ports == [taken] else None)
    with Parrot(run_dir, [taken, taken, good := free_port()]) as parrot:
        assert parrot.ports == [good]


def test_the_number_of_ports_tried_is_limited(run_dir: Path, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parrot, "_not_ready", lambda _parrot: "")
    parrot = Parrot(run_dir, [taken] * (PORT_ATTEMPTS + 1))
    with pytest.raises(StackError, match="the parrot ended while it was starting"):
        parrot.__enter__()
    assert parrot.offers == [taken]


def test_a_server_that_ends_for_another_reason_is_not_started_again(run_dir: Path) -> None:
    parrot = Parrot(run_dir, [])
    with pytest.raises(StackError, match=r"ended while it was starting \(exit code 1\)") as caught:
        parrot.__enter__()
    assert "no port for me" in caught.value.why
    assert parrot.tries == 1
    assert not run_dir.exists()


def test_a_wrong_answer_is_not_ready(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parrot, "START_TIMEOUT", 1.0)
    with pytest.raises(StackError, match="an answer from the parrot did not happen") as caught:
        Parrot(run_dir, [free_port()], word="good bye").__enter__()
    assert "TAILRACE_STACK_PARROT" in caught.value.remedy
    assert not run_dir.exists()


def test_an_address_without_a_server_fails_soon(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.testkit.stack.server.ADDRESS_TIMEOUT", 0.1)
    with pytest.raises(StackError, match=r"within 0\.1 s") as caught:
        Parrot(run_dir, [], choice=ServerChoice.ADDRESS).start()
    assert "no answer" in caught.value.why


def test_a_server_without_a_docker_image_is_refused(run_dir: Path) -> None:
    with pytest.raises(StackError, match="the parrot does not come from Docker"):
        Parrot(run_dir, [], choice=ServerChoice.DOCKER).start()
