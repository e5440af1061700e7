"""`Registry`: a real Confluent-compatible schema registry (Apicurio) for the tests and for trying things out.

A context manager like `KafkaBroker`, with the same powers: kill, stop, start again on the same data and port, pause.
Its data lie in the run directory, in a file: what it has answered survives kill -9. `url` is what clients are given;
`port` is what a proxy in front of it points to. It is ready when its API answers, under the name that we gave it. Its
global compatibility level starts as NONE, unlike Confluent's.

There is no Docker kind: an address in TAILRACE_STACK_REGISTRY, or one of our own.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import urllib.request
import uuid
from pathlib import Path
from typing import Any, Self

from tailrace.stack import registry_local
from tailrace.stack.cache import Progress, quiet
from tailrace.stack.errors import StackError
from tailrace.stack.places import new_run_dir
from tailrace.stack.ports import HOST, can_bind, free_port
from tailrace.stack.process import LocalProcess
from tailrace.stack.source import Source
from tailrace.stack.waiting import wait_until

VARIABLE = "TAILRACE_STACK_REGISTRY"
VERSION = registry_local.APICURIO
API = "/apis/ccompat/v7"
INFO = "/apis/registry/v3/system/info"
START_TIMEOUT = 90.0  # five seconds on a machine at rest
ADDRESS_TIMEOUT = 5.0
PORT_ATTEMPTS = 5
ASK_TIMEOUT = 2.0


class Registry:
    """A schema registry; started on entering."""

    def __init__(self, *, source: Source = Source.AUTO, progress: Progress = quiet) -> None:
        self._address = os.environ.get(VARIABLE, "").strip()
        if source is Source.DOCKER:
            raise StackError("there is no registry from Docker here", remedy=f"set {VARIABLE}, or use Source.LOCAL")
        if source is Source.AUTO:
            source = Source.ADDRESS if self._address else Source.LOCAL
        self.source = source
        self._progress = progress
        self._identity = f"tailrace-{uuid.uuid4()}"
        self._port = 0
        self._process: LocalProcess | None = None
        self._library = Path()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def local(self) -> bool:
        """Whether it is a process of ours, to be killed and paused at will."""
        return self.source is Source.LOCAL

    @property
    def url(self) -> str:
        """The address of its Confluent-compatible API."""
        return f"http://{HOST}:{self.port}{API}" if self.local else self._address

    @property
    def port(self) -> int:
        """The port that clients' connections arrive at: what a proxy must point to."""
        if not self._port:
            raise StackError("this registry has no port of ours", remedy="start it, with source=Source.LOCAL")
        return self._port

    @property
    def process(self) -> LocalProcess:
        """The process behind a local registry."""
        if self._process is None:
            raise StackError(
                "this registry is not a local one, or not started",
                remedy="start it with source=Source.LOCAL to get at its process",
            )
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.running

    @property
    def log(self) -> Path:
        return self.process.log

    def start(self) -> None:
        """Start, or start again after `stop` or `kill`: same data, same port. Returns when it answers."""
        if not self.local:
            self._await_answer()
        elif self._process is None:
            self.prepare()
            self._progress(f"starting Apicurio Registry {VERSION}")
            self._process = LocalProcess("registry", new_run_dir("registry", None), stop_signal=signal.SIGTERM)
            self._start_somewhere()
        else:
            self._launch()
            self._await_answer()

    def prepare(self) -> None:
        """Fetch what a local registry needs into the cache; at once where that is done."""
        if self.local:
            self._library = registry_local.application(self._progress)

    def stop(self) -> None:
        """An orderly shutdown."""
        self.process.stop()

    def kill(self) -> None:
        """kill -9; returns when the process is gone."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def close(self) -> None:
        """End it and remove all it wrote. A registry named by its address is left alone."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _start_somewhere(self) -> None:
        """First start: the port is ours only once the registry has bound it; others may have to be tried."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._port = free_port()
            shutil.rmtree(self.process.run_dir / "data", ignore_errors=True)
            self._launch()
            try:
                self._await_answer()
            except StackError:
                if attempt == PORT_ATTEMPTS or self.running or can_bind(self._port):
                    raise
            else:
                return

    def _launch(self) -> None:
        argv = registry_local.command(self._library, self.port, self._identity, self.process.run_dir)
        self.process.launch(argv, {})

    def _await_answer(self) -> None:
        last = ""

        def answers() -> bool:
            nonlocal last
            if self._process is not None and not self._process.running:
                raise self._process.failure(
                    f"the registry ended while it was starting (exit code {self._process.exit_code})",
                    remedy="the log says what it stumbled over",
                )
            try:
                if self.local:
                    # Another registry may have been quicker to take the port: only our own name counts.
                    name = str(_ask(f"http://{HOST}:{self.port}{INFO}")["name"])
                    last = f"the registry on port {self.port} is called {name}"
                    if not name.startswith(self._identity):
                        return False
                return isinstance(_ask(f"{self.url}/subjects"), list)
            except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError) as exc:
                last = str(exc)
                return False

        timeout = START_TIMEOUT if self.local else ADDRESS_TIMEOUT
        try:
            wait_until(answers, timeout, what="an answer from the schema registry")
        except StackError as exc:
            exc.why = exc.why or last
            exc.remedy = exc.remedy or f"see that it runs and that {VARIABLE} names it"
            raise


def _ask(url: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
    # The address is the loopback's, or the one that whoever runs us wrote into the environment.
    with urllib.request.urlopen(url, timeout=ASK_TIMEOUT) as answer:  # noqa: S310
        return json.loads(answer.read())
