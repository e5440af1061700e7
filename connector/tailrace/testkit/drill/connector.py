"""The connector process of a drill, which also cuts its own connections on command.

    python -m tailrace.testkit.drill.connector JOB

A proxy cannot stand before any cluster: brokers and members of a replica set tell clients their addresses, and
certificates name them. So the process shuts its own sockets down: SIGUSR1 cuts the connections to the database, SIGUSR2
those to Kafka. Both ends see a closed connection, whatever is between them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType

from tailrace.config.load import validate_settings
from tailrace.errors import ConfigError, TailraceError
from tailrace.worker import logs
from tailrace.worker.supervisor import Supervisor
from tailrace.worker.wiring import wire

EXIT_SECONDS = 5.0
JOIN_SECONDS = 0.2
DESCRIPTORS = "/proc/self/fd"
CUT = "link cut"
Address = tuple[str, int]


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    os.chdir(job["cwd"])
    settings, problems = validate_settings(job["settings"], Path(job["folder"]), os.environ)
    if settings is None:
        raise ConfigError("the settings of the drill are not valid", why=str(problems))
    logs.configure(as_json=True)
    log = logs.StructuredLogger(pipeline=settings.pipeline)
    supervisor = Supervisor(wire(settings, warn=lambda what: log.warning("notice", what=what)))
    kafka = {(str(host), int(port)) for host, port in job["kafka"]}

    def on_stop(number: int, _: FrameType | None) -> None:
        leave = threading.Timer(EXIT_SECONDS, os._exit, (0,))
        leave.daemon = True
        leave.start()
        supervisor.stop()

    def on_cut(link: str, wanted: Callable[[Address], bool]) -> Callable[[int, FrameType | None], None]:
        def cut(number: int, _: FrameType | None) -> None:
            log.info(CUT, link=link, connections=cut_connections(wanted))

        return cut

    signal.signal(signal.SIGTERM, on_stop)
    signal.signal(signal.SIGINT, on_stop)
    signal.signal(signal.SIGUSR1, on_cut("database", lambda peer: not is_one_of(peer, kafka)))
    signal.signal(signal.SIGUSR2, on_cut("kafka", lambda peer: is_one_of(peer, kafka)))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            supervisor.run()
        except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
            failures.append(error)

    thread = threading.Thread(target=run, name="work", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(JOIN_SECONDS)  # handlers of signals run between two of these
    for error in failures:
        if isinstance(error, TailraceError) and error is supervisor.failure:
            return error.exit_code  # it is already logged
        raise error
    return 0


def cut_connections(wanted: Callable[[Address], bool]) -> int:
    """Shuts down the connected sockets of this process whose peer is wanted; returns how many."""
    count = 0
    for name in os.listdir(DESCRIPTORS):  # noqa: PTH208 - the names are numbers, not files to open
        try:
            descriptor = os.dup(int(name))
        except OSError:
            continue  # closed meanwhile
        try:
            copy = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            continue  # not a socket
        with copy:
            try:
                if wanted(_peer(copy)):
                    copy.shutdown(socket.SHUT_RDWR)
                    count += 1
            except OSError:
                pass  # not connected
    return count


def _peer(connected: socket.socket) -> Address:
    """Returns the peer's address; raises OSError for sockets that lead to no server."""
    peer = connected.getpeername()
    if connected.family == socket.AF_UNIX:
        if not peer:
            raise OSError("a pair of sockets of this process")
        return str(peer), 0
    if connected.type != socket.SOCK_STREAM:
        raise OSError("not a connection")
    return plain_host(str(peer[0])), int(peer[1])


def plain_host(host: str) -> str:
    """Returns an IPv4 address that is written as an IPv6 address in its usual form."""
    return host.removeprefix("::ffff:")


def is_one_of(peer: Address, addresses: Collection[Address]) -> bool:
    return peer in addresses


if __name__ == "__main__":
    sys.exit(main())
