"""`make compose-test`: starts compose/ in Docker, runs the demo's verdict against it, and removes it.

Ends with exit code 2, and says so, if no Docker engine answers. The ports on this machine are free ones, so that
nothing that runs already is in the way. `--keep` leaves everything running.
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import re
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, ServerChoice, StackError, wait_until
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.stack.server import engine_answers
from tools.compose_shop import Program, ShopEnvironment, get, run_scenario

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "compose" / "compose.yaml"
EXAMPLE = ROOT / "compose" / "env.example"
PROJECT = "tailrace-test"
START_MINUTES = 15
SCRAPED_WITHIN = 90.0
UNAVAILABLE = 2
NO_ENGINE = """\
compose-test needs Docker, and no engine answers here: nothing was started, and nothing was tested.
  remedy: start Docker, or set DOCKER_HOST. Without it, `make test` checks the files of compose/, and
          `make test-slow ARGS=tests/integration/test_deploy_shop.py` runs the same scenario without containers.
"""


class Compose:
    """The project of compose/, with its own passwords and ports."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "env"
        names = re.findall(r"^(?:# )?([A-Z_]+)=", EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE)
        self.values = {name: str(free_port()) if name.endswith("_PORT") else secrets.token_hex(16) for name in names}
        self._file.write_text("".join(f"{name}={value}\n" for name, value in self.values.items()), encoding="utf-8")
        self._file.chmod(0o600)

    def command(self, *arguments: str) -> list[str]:
        options = ["--project-name", PROJECT, "--file", str(COMPOSE), "--env-file", str(self._file)]
        return ["docker", "compose", *options, *arguments]

    def run(self, *arguments: str) -> str:
        """Runs a command of `docker compose`; returns what it prints."""
        inherited = {name: value for name, value in os.environ.items() if name not in self.values}
        done = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            check=False,
            env=inherited,
            timeout=START_MINUTES * 60,
        )
        if done.returncode:
            raise StackError(f"docker compose {arguments[0]} failed", why=(done.stderr or done.stdout)[-4000:])
        return done.stdout

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.values[f'{name}_PORT']}"


class Container(Program):
    """A service of the project."""

    is_running = True

    def __init__(self, compose: Compose, name: str) -> None:
        self._compose = compose
        self.name = name

    def start(self) -> None:
        self._compose.run("start", self.name)

    def kill(self) -> None:
        self._compose.run("kill", "--signal", "SIGKILL", self.name)

    def stop(self) -> None:
        self._compose.run("stop", self.name)

    @property
    def pid(self) -> int:
        container = self._compose.run("ps", "--all", "--quiet", self.name).strip()
        shown = subprocess.run(
            ["docker", "inspect", "--format", "{{.State.Pid}}", container], capture_output=True, text=True, check=True
        )
        return int(shown.stdout)

    def log(self) -> str:
        return self._compose.run("logs", "--no-color", "--tail", "40", self.name)


def environment(compose: Compose) -> ShopEnvironment:
    """Returns the shop in the containers. Its servers are reached through the ports on this machine."""
    values = compose.values
    login = f"postgres:{values['POSTGRES_PASSWORD']}"
    os.environ[PostgresServer.VARIABLE] = f"postgresql://{login}@127.0.0.1:{values['POSTGRES_PORT']}/postgres"
    os.environ[MongoServer.VARIABLE] = f"mongodb://127.0.0.1:{values['MONGO_PORT']}/?directConnection=true"
    os.environ[KafkaBroker.VARIABLE] = f"localhost:{values['KAFKA_PORT']}"
    postgres, mongo = PostgresServer(choice=ServerChoice.ADDRESS), MongoServer(choice=ServerChoice.ADDRESS)
    kafka = KafkaBroker(choice=ServerChoice.ADDRESS)
    for server in (postgres, mongo, kafka):
        server.start()
    return ShopEnvironment(
        kafka,
        postgres,
        mongo,
        worker=Container(compose, "worker"),
        worker_url=compose.url("WORKER"),
        worker_token=values["WORKER_TOKEN"],
        projection=Container(compose, "projection"),
        projection_url=compose.url("PROJECTION"),
    )


def check_monitoring(compose: Compose) -> list[str]:
    """Returns what is wrong with Prometheus and Grafana."""
    prometheus, grafana = compose.url("PROMETHEUS"), compose.url("GRAFANA")

    def down() -> list[str]:
        targets = get(f"{prometheus}/api/v1/targets")["data"]["activeTargets"]
        return [f"Prometheus cannot scrape {each['scrapeUrl']}" for each in targets if each["health"] != "up"]

    try:
        wait_until(lambda: not down(), SCRAPED_WITHIN, what="a scrape of each target")
    except StackError:
        return down()
    groups = get(f"{prometheus}/api/v1/rules")["data"]["groups"]
    wrong = [
        f"the rule {rule['name']} is {rule['health']}: {rule.get('lastError', '')}"
        for group in groups
        for rule in group["rules"]
        if rule["health"] == "err"
    ]
    login = base64.b64encode(f"admin:{compose.values['GRAFANA_ADMIN_PASSWORD']}".encode()).decode()
    found = get(f"{grafana}/api/search?query=Tailrace", {"Authorization": f"Basic {login}"})
    if not any(each.get("uid") == "tailrace" for each in found):
        wrong.append("Grafana has no dashboard Tailrace")
    return wrong if groups else [*wrong, "Prometheus has no alert rules"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make compose-test", description="Test compose/ in Docker.")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to write")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))  # noqa: S311 - a workload, not a secret
    parser.add_argument("--keep", action="store_true", help="leave everything running")
    given = parser.parse_args(arguments)
    if not engine_answers():
        sys.stderr.write(NO_ENGINE)
        return UNAVAILABLE
    with tempfile.TemporaryDirectory() as folder:
        compose = Compose(Path(folder))
        try:
            sys.stdout.write("starting all containers; the first time, images are fetched and Tailrace's is built\n")
            compose.run("up", "--build", "--detach", "--wait")
            wrong = check_monitoring(compose)
            report = run_scenario(environment(compose), seconds=given.seconds, seed=given.seed)
        except StackError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        else:
            sys.stdout.write("".join(f"{each}\n" for each in wrong) or "Prometheus and Grafana are as they must be\n")
            return 1 if wrong else report.exit_code
        finally:
            if not given.keep:
                compose.run("down", "--volumes", "--remove-orphans")


if __name__ == "__main__":
    sys.exit(main())
