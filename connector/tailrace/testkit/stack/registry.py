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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace.testkit.stack import registry_local
from tailrace.testkit.stack.cache import Progress, quiet
from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.paths import new_run_dir
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.server import StackServer
from tailrace.testkit.stack.server_choice import ServerChoice

VARIABLE = "TAILRACE_STACK_REGISTRY"
VERSION = registry_local.APICURIO
API = "/apis/ccompat/v7"
INFO = "/apis/registry/v3/system/info"
ASK_TIMEOUT = 2.0


class RegistryServer(StackServer):
    """A schema registry; started on entering."""

    NAME = "the schema registry"
    VARIABLE = VARIABLE
    START_TIMEOUT = 90.0  # five seconds on a machine at rest

    def __init__(self, *, choice: ServerChoice = ServerChoice.AUTO, progress: Progress = quiet) -> None:
        address = os.environ.get(VARIABLE, "").strip()
        if choice is ServerChoice.DOCKER:
            raise StackError("there is no registry from Docker here", remedy=f"set {VARIABLE}, or use Source.LOCAL")
        if choice is ServerChoice.AUTO:
            choice = ServerChoice.ADDRESS if address else ServerChoice.LOCAL
        super().__init__(choice, address, progress)
        self._identity = f"tailrace-{uuid.uuid4()}"
        self._port = 0
        self._library = Path()

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

    def prepare(self) -> None:
        """Fetch what a local registry needs into the cache; at once where that is done."""
        if self.local:
            self._library = registry_local.application(self._progress)

    def _create(self) -> None:
        self._progress(f"starting Apicurio Registry {VERSION}")
        self._process = LocalProcess("registry", new_run_dir("registry", None), stop_signal=signal.SIGTERM)

    def _settle(self) -> Sequence[int]:
        self._port = free_port()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        return [self._port]

    def _launch(self) -> None:
        argv = registry_local.command(self._library, self.port, self._identity, self.process.run_dir)
        self.process.launch(argv, {})

    def _silence(self) -> str | None:
        try:
            if self.local:
                # Another registry may have been quicker to take the port: only our own name counts.
                name = str(_ask(f"http://{HOST}:{self.port}{INFO}")["name"])
                if not name.startswith(self._identity):
                    return f"the registry on port {self.port} is called {name}"
            return None if isinstance(_ask(f"{self.url}/subjects"), list) else "it does not list its subjects"
        except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError) as exc:
            return str(exc)


def _ask(url: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
    # The address is the loopback's, or the one that whoever runs us wrote into the environment.
    with urllib.request.urlopen(url, timeout=ASK_TIMEOUT) as answer:  # noqa: S310
        return json.loads(answer.read())
