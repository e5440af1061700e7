"""The scene: servers, services, and the files a user would write, in a folder of their own that goes with the demo."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tailrace.state import position_history
from tailrace.testkit.demo.command import STOP_TIMEOUT
from tailrace.testkit.demo.orders import Orders
from tailrace.testkit.demo.projection_process import OrderSummaryProjection, is_installed
from tailrace.testkit.demo.servers import Servers
from tailrace.testkit.demo.service import SHOP, Service
from tailrace.testkit.stack.kafka import quiet_admin
from tailrace.testkit.stack.paths import new_run_dir

REPOSITORY = Path(__file__).parents[4]


def example_folder(name: str) -> Path:
    """Returns the folder `schemas` or `topics`: the copy in the wheel, or the repository's in an editable install."""
    copy = Path(__file__).parent / name
    return copy if copy.is_dir() else REPOSITORY / name


class DemoEnvironment:
    """Everything the play needs, made on `open` and gone after `close`."""

    def __init__(self, version: str = "16") -> None:
        self.servers = Servers(version)
        suffix = "" if self.servers.ours else f"_{secrets.token_hex(3)}"
        orders = Orders(self.servers, suffix)
        self.services: list[Service] = [orders]
        self.projections = [OrderSummaryProjection(orders, suffix)] if is_installed() else []
        if self.servers.mongo is not None:
            from tailrace.testkit.demo.users import Users

            self.services.append(Users(self.servers, suffix, self.servers.mongo))
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return self.servers.kafka.bootstrap

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the scene is not open")
        return self._folder

    def description(self) -> str:
        """Which servers there are; versions as they say themselves: one named by its address has the one it has."""
        postgres = f"Postgres {self.servers.postgres.version_num // 10_000}"
        if self.servers.mongo is None:
            return f"{postgres} and Kafka are up (no MongoDB for this machine: TAILRACE_STACK_MONGO may name one)"
        return f"{postgres}, MongoDB {self.servers.mongo.version} and Kafka are up"

    def open(self, busy: Callable[[str], None]) -> None:
        """Servers, databases and files; connectors and projections are not started yet."""
        self.servers.start(busy)
        self._folder = new_run_dir("demo", None)
        for service in self.services:
            service.prepare(self._folder)
        for projection in self.projections:
            projection.prepare(self._folder)
        for name in ("schemas", "topics"):
            shutil.copytree(example_folder(name), self._folder / name)
        for service in self.services:
            rule = self._folder / "topics" / f"{service.NAME}.yaml"
            text = rule.read_text(encoding="utf-8").replace(f"{SHOP}.{service.NAME}", service.topic)
            rule.write_text(text, encoding="utf-8")

    def close(self) -> None:
        """Ends all processes, then the servers; on servers of somebody else's, removes what the demo made."""
        with ExitStack() as last:
            last.callback(self.servers.close)
            if self._folder is not None:
                last.callback(shutil.rmtree, self._folder, ignore_errors=True)
                if not self.servers.ours:
                    last.callback(self._remove_topics)
            for service in self.services:
                last.callback(service.close)
            for projection in self.projections:
                last.callback(projection.close)

    def _remove_topics(self) -> None:
        topics = {topic for each in self.services for topic in (each.topic, each.letters, each.offsets)}
        topics |= {each.offsets + position_history.SUFFIX for each in self.services}
        topics |= {each.letters for each in self.projections}
        admin = quiet_admin(self.bootstrap)  # by a name: without one it would be gone before its answers come
        for deleted in admin.delete_topics(list(topics)).values():
            # A topic that was never made is as gone as one that is deleted.
            deleted.exception(STOP_TIMEOUT)
