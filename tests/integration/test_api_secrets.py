"""No secret and no payload anywhere but where it belongs: markers are planted everywhere, and searched everywhere.

One worker runs pipelines that succeed and that fail in many ways, at the most verbose log level. A control marker that
is no secret is found by the same search in each place: so the search can fail.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from helpers.port_certificates import Authority
from helpers.shop import Shop
from helpers.stack import is_dead
from helpers.webhook import HandClock, Hook, status
from helpers.worker import WorkerProcess, put_pipeline
from tailrace.config.connector import file_config
from tailrace.testkit.stack import StackError, wait_until
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.topic_reader import read_all

RULES = """
def check(event):
    if event.payload.get("revision") == 99:
        raise ValueError(f"bad order {event.payload}")
    return None
"""
SECRETS = (
    "database", "wrong_password", "sasl", "tls_key", "registry", "hook_path", "hook_token", "admin", "reader",
    "port_key", "literal", "guess",
)  # fmt: skip
PAYLOADS = ("good", "invalid", "raised", "edited", "body")


def marker(name: str) -> str:
    return f"mk-{name.replace('_', '-')}-{uuid.uuid4().hex[:12]}"


class FreshWorker(WorkerProcess):
    """A worker that is started as users start it, so that /proc shows its own arguments and environment."""

    def __init__(self, log: Path, *words: str, environ: dict[str, str]) -> None:
        self.log_file = log
        with log.open("wb") as out:
            command = [sys.executable, "-m", "tailrace", "worker", *words, "--log-json"]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environ)  # type: ignore[assignment]


class Planted:
    """The worker with all markers, its pipelines, and everything that it has shown."""

    def __init__(self, shop: Shop, folder: Path, hook: Hook) -> None:
        folder.mkdir()
        self.hook = hook
        self.shop = shop
        self.folder = folder
        self.marks = {name: marker(name) for name in (*SECRETS, *PAYLOADS)}
        self.control = f"control_{uuid.uuid4().hex[:12]}"
        self.pipelines, self.port = folder / "pipelines", folder / "port"
        self._temp = tempfile.TemporaryDirectory(prefix="tr-")  # sockets are in it, whose paths must be short
        self.temp = Path(self._temp.name)
        self.authority = Authority(self.port)
        self.answers: dict[str, str] = {}
        self.clients: dict[str, httpx2.Client] = {}
        self._prepare(hook)
        self.worker = self._start()
        try:
            self.worker.url = self.worker.says("listening")["address"]
        except BaseException:
            self.close()
            raise
        context = ssl.create_default_context(cafile=self.authority.file)
        self.context = context
        self.clients = {
            role: httpx2.Client(
                base_url=self.worker.url, verify=context, timeout=90,
                headers={"authorization": f"Bearer {self.marks[role]}"},
            )
            for role in ("admin", "reader")
        }  # fmt: skip

    def _prepare(self, hook: Hook) -> None:
        marks, shop = self.marks, self.shop
        role = f"role_{uuid.uuid4().hex[:8]}"
        self.role = role
        shop.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{marks['database']}'")
        parts = conninfo_to_dict(shop.dsn)
        server = f"host={parts['host']} port={parts['port']} dbname={parts['dbname']} user={role}"
        self.dsn = f"{server} password=${{env:SHOP_DB}}"
        (shop.folder / "rules").mkdir()
        (shop.folder / "rules" / "planted_rules.py").write_text(RULES)
        for name in ("sasl", "tls_key", "registry", "hook_token", "admin", "reader"):
            (self.port / name).write_text(f"{marks[name]}\n")
        (self.port / "port_key").write_text(marks["port_key"])
        webhook = {
            "url": f"http://127.0.0.1:{hook.port}/{marks['hook_path']}",
            "headers": {"Authorization": f"${{file:{self.port / 'hook_token'}}}"},
            "interval": 1,
        }
        rules = {"checks": {"*": ["planted_rules:check"]}, "folder": str(shop.folder / "rules")}
        good = {"source": {"postgres": self.dsn, "start": "beginning"}, "rules": rules}
        self._put(f"{shop.name}_halt", **good, on_invalid="halt", kafka={"dead_letter_topic": f"{shop.name}.halted"})
        wrong = f"{server} password={marks['wrong_password']}"
        self._put(f"{shop.name}_wrong", source={"postgres": wrong})
        self._put(f"{shop.name}_tls", source={"postgres": f"{self.dsn} sslmode=verify-full"})
        sasl = {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u",
            "sasl.password": f"${{file:{self.port / 'sasl'}}}",
            "ssl.key.password": f"${{file:{self.port / 'tls_key'}}}",
        }  # fmt: skip
        self._put(f"{shop.name}_sasl", source={"postgres": self.dsn}, kafka={"settings": sasl})
        registry = {
            "url": "http://127.0.0.1:1",
            "settings": {"basic.auth.user.info": f"u:${{file:{self.port / 'registry'}}}"},
        }
        self._put(f"{shop.name}_registry", source={"postgres": self.dsn}, schemas={"registry": registry})
        self._put(shop.name, **good, dead_letters={"webhook": webhook})

    def _put(self, name: str, **sections: Any) -> None:
        before = self.shop.name
        file = put_pipeline(self.pipelines, self.shop, **{k: v for k, v in sections.items() if isinstance(v, dict)})
        settings = json.loads(file.read_text())
        settings |= {"pipeline": name, **{k: v for k, v in sections.items() if not isinstance(v, dict)}}
        if "registry" in settings["schemas"]:
            del settings["schemas"]["folder"]
        if name != before:
            file.unlink()
        (self.pipelines / f"{name}.yaml").write_text(json.dumps(settings))

    def _start(self) -> WorkerProcess:
        pair = self.authority.issue(password=self.marks["port_key"])
        token = {name: {"role": role, "token": f"${{file:{name}}}"} for name, role in
                 (("admin", "admin"), ("reader", "read"))}  # fmt: skip
        settings = {
            "tls": {
                "certificate": str(pair.certificate), "key": str(pair.key), "key_password": "${file:port_key}",
            },
            "tokens": token,
            "allow": {"variables": ["SHOP_*"]},
            "limits": {"failures_per_minute": 1000},
        }  # fmt: skip
        (self.port / "http.yaml").write_text(yaml.safe_dump(settings))
        own = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
        environ = {**own, "SHOP_DB": self.marks["database"], "CONTROL": self.control, "TMPDIR": str(self.temp)}
        self.environ = environ
        return FreshWorker(
            self.folder / "worker.log",
            str(self.pipelines),
            *("--bootstrap", self.shop.kafka.bootstrap, "--config-topic", f"{self.control}-configs"),
            *("--http", f"127.0.0.1:{free_port()}", "--http-settings", str(self.port / "http.yaml")),
            environ=environ,
        )

    def call(self, method: str, path: str, body: Any = None, *, role: str = "admin", keep: bool = True) -> Any:
        """Sends a request, and keeps the answer for the search."""
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        answer = self.clients[role].request(method, path, content=content, headers=headers)
        if keep:
            self.answers[f"{role} {method} {path} {len(self.answers)}"] = f"{answer.text}\n{dict(answer.headers)}"
        return answer

    def state(self, name: str) -> str:
        return str(self.call("GET", f"/api/v1/pipelines/{name}", keep=False).json().get("state"))

    def is_in(self, name: str, *states: str) -> None:
        try:
            wait_until(lambda: self.state(name) in states, 90)
        except StackError:
            pytest.fail(f"{name} is {self.state(name)}, not one of {states}:\n{self.worker.log[-20_000:]}")

    def places(self) -> Iterator[tuple[str, str]]:
        """Yields everything that was written or shown, by place."""
        yield "log", self.worker.log
        yield from (("answer", f"{where}: {text}") for where, text in self.answers.items())
        parent = psutil.Process(self.worker.process.pid)
        for each in [parent, *parent.children(recursive=True)]:
            proc = Path(f"/proc/{each.pid}")
            try:
                yield "arguments", (proc / "cmdline").read_text() + (proc / "comm").read_text()
                yield "arguments", " ".join(task.read_text() for task in proc.glob("task/*/comm"))
                yield "environment", (proc / "environ").read_text(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                pass
        for file in self.temp.rglob("*"):
            if file.is_file():
                yield "file", f"{file.name}: {file.read_text(errors='replace')}"
        names = self.shop.kafka.admin().list_topics(timeout=30).topics
        of_events = (self.shop.topic, self.shop.letters, f"{self.shop.name}.halted")
        own = [
            name
            for name in names
            if name.startswith(("tailrace", *of_events)) or self.shop.name in name or self.control in name
        ]
        for record in read_all(self.shop.kafka.bootstrap, own):
            place = "event" if str(record.topic()).startswith(of_events) else "topic"
            yield place, f"{record.topic()}: {record.key()!r} {record.value()!r} {record.headers()!r}"

    def examine(self) -> None:
        """Keeps what `tailrace doctor` prints of the files, and what it finds of the whole worker."""
        for form in ([], ["--json"]):
            command = [sys.executable, "-m", "tailrace", "doctor", str(self.pipelines), *form]
            done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=240, check=False)
            assert done.returncode in (1, 3), done.stderr
            self.answers[f"doctor {form}"] = f"{done.stdout}\n{done.stderr}"
        job = self.call("POST", "/api/v1/doctor", {}).json()
        path = f"/api/v1/jobs/{job['id']}"
        wait_until(lambda: self.call("GET", path, keep=False).json()["ended_ms"], 240, what="the end of doctor")
        self.call("GET", path)

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        self.worker.kill()
        self._temp.cleanup()
        self.shop.execute(f"ALTER ROLE {self.role} NOLOGIN NOSUPERUSER")


@pytest.fixture
def planted(shop: Shop, tmp_path: Path) -> Iterator[Planted]:
    with Hook(HandClock()) as hook:
        hook.answer = status(500)
        found = Planted(shop, tmp_path / "planted", hook)
        try:
            yield found
        finally:
            found.close()


def order(note: str, **more: Any) -> str:
    return json.dumps({"order": note, "revision": 1, "amount": 1, "currency": "EUR", **more})


def drive(planted: Planted) -> list[str]:
    """Goes through success and every kind of failure; returns the ids of events."""
    shop, marks, name = planted.shop, planted.marks, planted.shop.name
    assert planted.call("PUT", "/admin/loggers/root?scope=cluster", {"level": "TRACE"}).status_code == 204
    config = file_config(json.loads((planted.pipelines / f"{name}.yaml").read_text()))
    kept = {
        key: text for key, text in config.items() if not key.startswith(("rules.", "dead_letters.", "source.start"))
    }
    created = {"name": planted.control, "config": {**kept, "name": planted.control}, "initial_state": "STOPPED"}
    answer = planted.call("POST", "/connectors", created)
    assert answer.status_code == 201, answer.text
    for each, state in (("", "RUNNING"), ("_wrong", "FAILED"), ("_tls", "FAILED")):
        planted.is_in(f"{name}{each}", state, "RETRYING" if state == "FAILED" else state)
    for each in ("_sasl", "_registry"):
        planted.is_in(f"{name}{each}", "FAILED", "RETRYING")

    ids = [
        shop.insert(order(marks["good"])),
        shop.insert(order(marks["raised"], revision=99), key=planted.control),
        shop.insert(order("1", currency=marks["invalid"])),
    ]
    wait_until(lambda: len(read_all(shop.kafka.bootstrap, [shop.letters])) >= 2, 120, what="two dead letters")
    planted.is_in(f"{name}_halt", "FAILED", "RESTARTING")
    wait_until(lambda: bool(planted.hook.calls), 120, what="the webhook")

    # Requests with secrets and payloads that fail, and a redrive with an edited payload.
    literal = {**created, "name": "x", "config": {**kept, "source.postgres": f"postgresql://u:{marks['literal']}@h/d",
               "name": "x", "nonsense": "1"}}  # fmt: skip
    assert planted.call("POST", "/connectors", literal).status_code == 400
    foreign = {**kept, "name": planted.control, "source.postgres": "postgresql://u:${env:CONTROL_OTHER}@h/d"}
    assert planted.call("PUT", f"/connectors/{planted.control}/config", foreign).status_code == 400
    validate = "/connector-plugins/tailrace.PostgresOutbox/config/validate"
    assert planted.call("PUT", validate, literal["config"]).status_code == 200
    assert planted.call("POST", "/connectors", f'{{"name": "{marks["body"]}'.encode()).status_code == 400
    for path in ("/connectors", "/api/v1/pipelines"):
        wrong = httpx2.get(
            f"{planted.worker.url}{path}", verify=planted.context,
            headers={"authorization": f"Bearer {marks['guess']}"},
        )  # fmt: skip
        assert wrong.status_code == 401
        planted.answers[f"guess {path}"] = wrong.text
    edited = order(marks["edited"])
    letter = planted.call("GET", f"/api/v1/pipelines/{name}/dlq/list", keep=False).json()["letters"][0]["id"]
    redrive = {"ids": [letter], "payload": json.loads(edited)}
    job = planted.call("POST", f"/api/v1/pipelines/{name}/dlq/redrive", redrive)
    assert job.status_code == 202, job.text
    command = planted.call("POST", f"/api/v1/pipelines/{name}/command", {
        "command": "dlq redrive", "parameters": {"ids": [letter]}, "json": True, "yes": True,
        "contents": {"payload": {"name": "p.json", "base64": base64.b64encode(edited.encode()).decode()}},
    })  # fmt: skip
    assert command.status_code == 200, command.text

    # A crash that leaves a traceback, and a restart.
    pid = planted.worker.pid_of(name)
    os.kill(pid, signal.SIGABRT)
    wait_until(lambda: is_dead(pid), what="the end of the process")
    planted.worker.says("process started", name, times=2)
    planted.is_in(name, "RUNNING")
    return ids


def read_every_route(planted: Planted, ids: list[str]) -> None:
    """Calls all GET routes that the two OpenAPI documents have, with both roles, for all pipelines."""
    names = [each["name"] for each in planted.call("GET", "/api/v1/pipelines").json()["pipelines"]]
    found = planted.call("GET", "/api/v1/jobs").json()["jobs"]
    jobs = [each["id"] for each in found]
    of_events = {
        f"/api/v1/jobs/{each['id']}" for each in found if each["operation"].startswith(("dlq list", "dlq show"))
    }
    loggers = list(planted.call("GET", "/admin/loggers").json())
    assert len(names) == 7
    assert jobs
    choices = {
        "name": names, "connector": names, "pipeline": names, "job_id": jobs, "logger": loggers, "task": ["0"],
        "event_id": ids, "plugin": ["tailrace.PostgresOutbox"],
    }  # fmt: skip
    calls: list[tuple[str, str]] = []
    for document in ("/api/connect/openapi.json", "/api/v1/openapi.json"):
        for template, methods in planted.call("GET", document).json()["paths"].items():
            if "get" not in methods or template.endswith("/stream"):
                continue
            # Commands of some failing pipelines would wait for half a minute each.
            is_command = template.startswith("/api/v1/pipelines/{name}/")
            given = {**choices, "name": [planted.shop.name, f"{planted.shop.name}_wrong"]} if is_command else choices
            for filled in filled_paths(template, given):
                calls += [("admin", filled)]
                calls += [] if is_command and "_wrong" in filled else [("reader", filled)]
    assert len(calls) > 100

    def call(role: str, path: str) -> None:
        shows_events = "/dlq/" in path or "/events/" in path or path in of_events
        answer = planted.call("GET", path, role=role, keep=not (shows_events and role == "admin"))
        assert answer.status_code not in (401, 429), path
        assert (answer.status_code == 403) == (shows_events and role == "reader"), (role, path, answer.text)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda each: call(*each), calls))
    for path in ("/metrics", "/health", "/readyz", "/livez"):
        planted.call("GET", path)
    payload = f"/api/v1/pipelines/{planted.shop.name}/events/{ids[0]}?payload=true"
    assert planted.call("GET", payload, role="reader").status_code == 403
    assert planted.marks["good"] in planted.call("GET", payload, keep=False).text


def filled_paths(path: str, choices: dict[str, list[str]]) -> list[str]:
    found = [path]
    for name, values in choices.items():
        found = [
            each.replace(f"{{{name}}}", value)
            for each in found
            for value in (values if f"{{{name}}}" in each else [""])
        ]
    assert all("{" not in each for each in found), found
    return found


@pytest.mark.slow
def test_no_secret_and_no_payload_is_anywhere(planted: Planted) -> None:
    ids = drive(planted)
    planted.examine()
    read_every_route(planted, ids)
    leaks: list[str] = []
    controls: set[str] = set()
    for place, text in planted.places():
        if planted.control in text:
            controls.add(place)
        for name, mark in planted.marks.items():
            if place == "environment" and name == "database":
                continue  # the environment is where it was put
            if place == "event" and name in PAYLOADS:
                continue
            at = text.find(mark)
            if at >= 0:
                leaks.append(f"{name} in {place}: …{text[max(0, at - 150) : at + 60]}…")
    assert not leaks, "\n".join(leaks[:20])
    assert controls == {"log", "answer", "arguments", "environment", "file", "topic", "event"}
    # They were really used, and are where they belong.
    assert planted.hook.headers[0]["Authorization"] == planted.marks["hook_token"]
    letters = b"".join(each.value() or b"" for each in read_all(planted.shop.kafka.bootstrap, [planted.shop.letters]))
    assert planted.marks["invalid"].encode() in letters
    events = b"".join(each.value() or b"" for each in read_all(planted.shop.kafka.bootstrap, [planted.shop.topic]))
    assert planted.marks["good"].encode() in events
    assert planted.marks["edited"].encode() in events
