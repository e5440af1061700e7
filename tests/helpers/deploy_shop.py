"""The shop of compose/ without Docker: its servers, its set-up, and its commands, as processes of this machine.

Commands, variables and files are read from compose/compose.yaml; only addresses and paths are replaced.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from helpers.deploy_files import ROOT, compose
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, RegistryServer, ServerChoice
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.workload.users import create_users
from tools.compose_shop import Program, ShopEnvironment

PASSWORD = "letters0and1digits"


class ShopProcess(Program):
    """A command of a service in compose.yaml."""

    def __init__(self, name: str, folder: Path, arguments: list[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.arguments = arguments
        self._environment = environment
        folder.mkdir()
        self._process = LocalProcess(name, folder)

    def start(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        environment = {**inherited, **self._environment, "PYTHONPATH": str(ROOT)}
        self._process.launch([sys.executable, "-m", "tailrace", *self.arguments], environment)
        self.is_running = True

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._process.stop(30)
        self.is_running = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        return self._process.log.read_text(encoding="utf-8")[-4000:]

    def close(self) -> None:
        self._process.close()


class Shop:
    """The services of compose.yaml. Ports of the worker and the projection are free ones."""

    def __init__(self, folder: Path, servers: ExitStack) -> None:
        self.services: dict[str, Any] = compose()["services"]
        self._folder = folder
        settings = dict(word.split("=") for word in self.services["postgres"]["command"] if "=" in word)
        self.postgres = servers.enter_context(PostgresServer("16", settings=settings, choice=ServerChoice.LOCAL))
        self.mongo = servers.enter_context(MongoServer(choice=ServerChoice.LOCAL))
        self.kafka = servers.enter_context(KafkaBroker(choice=ServerChoice.LOCAL))
        self.registry = servers.enter_context(RegistryServer(choice=ServerChoice.LOCAL))
        self.worker_port, self.projection_port = free_port(), free_port()
        self._addresses = {
            "postgres:5432": f"{self.postgres.host}:{self.postgres.port}",
            "mongodb://mongo:27017/?replicaSet=rs0": self.mongo.uri,
            "kafka:9092": self.kafka.bootstrap,
            "http://registry:8080/apis/ccompat/v7": self.registry.url,
            "/etc/tailrace": str(folder / "etc"),
        }
        self._set_up_databases()
        self._mount()
        self.run("schemas")
        self.worker = self._program("worker", servers, self.worker_port)
        self.projection = self._program("projection", servers, self.projection_port)

    @property
    def environment(self) -> ShopEnvironment:
        return ShopEnvironment(
            self.kafka,
            self.postgres,
            self.mongo,
            worker=self.worker,
            worker_url=f"http://127.0.0.1:{self.worker_port}",
            worker_token=PASSWORD,
            projection=self.projection,
            projection_url=f"http://127.0.0.1:{self.projection_port}",
        )

    def run(self, service: str) -> str:
        """Runs the command of a service to its end; returns what it prints."""
        arguments, environment = self._command(service)
        done = subprocess.run(
            [sys.executable, "-m", "tailrace", *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _program(self, name: str, servers: ExitStack, port: int) -> ShopProcess:
        arguments, environment = self._command(name)
        arguments = [word.replace("0.0.0.0:8083", f"127.0.0.1:{port}") for word in arguments]
        program = ShopProcess(name, self._folder / name, arguments, environment)
        servers.callback(program.close)
        return program

    def _command(self, name: str) -> tuple[list[str], dict[str, str]]:
        """Returns command and variables of a service, with the addresses of our servers."""
        service = self.services[name]
        environment = {key: self._local(value) for key, value in (service.get("environment") or {}).items()}
        return [self._local(word) for word in service["command"]], environment

    def _local(self, text: str) -> str:
        for there, here in self._addresses.items():
            text = text.replace(there, here)
        return re.sub(r"\$\{[A-Z_]*(PASSWORD|TOKEN)[^}]*\}", PASSWORD, text)

    def _mount(self) -> None:
        """Puts files where the volumes of the worker put them."""
        for volume in self.services["worker"]["volumes"]:
            source, target, _ = volume.split(":")
            place = self._folder / "etc" / Path(target).relative_to("/etc/tailrace")
            shutil.copytree(ROOT / "compose" / source, place)
        for file in (self._folder / "etc" / "pipelines").iterdir():
            file.write_text(self._local(file.read_text(encoding="utf-8")), encoding="utf-8")

    def _set_up_databases(self) -> None:
        """Runs the set-up of Postgres as its image does, with psql, and that of MongoDB if there is a mongosh."""
        service = self.services["postgres"]
        self.postgres.create_database(service["environment"]["POSTGRES_DB"])
        assert self.postgres.bin_dir is not None
        with self.postgres.connect() as connection:
            info = connection.info
            login = {"PGHOST": info.host, "PGPORT": str(info.port), "PGPASSWORD": info.password}
            user = info.user
        variables = {name: self._local(value) for name, value in service["environment"].items()}
        done = subprocess.run(
            ["bash", ROOT / "compose" / "postgres" / "shop.sh"],
            env={
                **login,
                **variables,
                "POSTGRES_USER": user,
                "PATH": f"{self.postgres.bin_dir}:{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        mongosh = os.environ.get("MONGOSH") or shutil.which("mongosh")
        if mongosh is None:
            create_users(self.mongo.uri, "shop")
            return
        script = ROOT / "compose" / "mongo" / "shop.js"
        subprocess.run([mongosh, "--quiet", self.mongo.uri, script], check=True, capture_output=True)


@contextmanager
def open_shop(folder: Path) -> Iterator[Shop]:
    """Starts the servers of the shop and sets them up, without starting worker and projection."""
    with ExitStack() as servers:
        yield Shop(folder, servers)
