"""A worker's HTTP port against real clients over real TLS: what is refused at the start, who gets in, rotation."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from helpers.api import run_locally
from helpers.port_certificates import Authority, Pair
from helpers.tls import FLAWS, Certificates, TlsFront
from helpers.worker import WorkerProcess, Workers
from tailrace.outbox.writer.connector_status import StatusReader
from tailrace.outbox.writer.worker_connection import VARIABLES
from tailrace.testkit.stack import wait_until
from tailrace.testkit.stack.ports import free_port

ADMIN, READ = "admin-token-0123456789", "read-token-0123456789"
GETS = (
    "/", "/connectors", "/connector-plugins", "/admin/loggers", "/health", "/metrics", "/api/v1/pipelines",
    "/api/v1/jobs", "/api/v1/openapi.json", "/openapi.json",
)  # fmt: skip


class Port:
    """The settings of a port in a folder, and clients of the worker that has them."""

    def __init__(self, folder: Path, workers: Workers, pipelines: Path) -> None:
        self.folder = folder / "port"
        self.authority = Authority(self.folder)
        self._workers, self._pipelines = workers, pipelines
        self.settings: dict[str, Any] = {"tokens": {}}
        for name, role, token in (("ops", "admin", ADMIN), ("viewer", "read", READ)):
            (self.folder / name).write_text(f"{token}\n")
            self.settings["tokens"][name] = {"role": role, "token": f"${{file:{name}}}"}

    def with_tls(self, **more: str) -> None:
        self.settings["tls"] = {"certificate": "tls.crt", "key": "tls.key", **more}
        self.use(self.authority.issue())

    def use(self, pair: Pair) -> None:
        """Makes this pair the certificate of the port, in two steps as an administrator would."""
        for source, name in zip(pair, ("tls.crt", "tls.key"), strict=True):
            new = self.folder / f".{name}"
            new.write_bytes(source.read_bytes())
            new.replace(self.folder / name)

    def write(self) -> Path:
        file = self.folder / "http.yaml"
        file.write_text(yaml.safe_dump(self.settings))
        return file

    def start(self, host: str = "127.0.0.1", *arguments: object, **environ: str) -> WorkerProcess:
        address = f"{host}:{free_port()}"
        return self._workers.start(
            self._pipelines, "--http-settings", self.write(), *arguments, http=address, **environ
        )

    def listening(self, *arguments: object, **environ: str) -> WorkerProcess:
        worker = self.start("127.0.0.1", *arguments, **environ)
        worker.url = worker.says("listening")["address"]
        return worker

    def client(
        self, worker: WorkerProcess, token: str = "", pair: Pair | None = None, authority: Path | None = None
    ) -> httpx2.Client:
        context = ssl.create_default_context(cafile=authority or self.authority.file)
        if pair is not None:
            context.load_cert_chain(*pair)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx2.Client(base_url=worker.url, verify=context, headers=headers, timeout=30)


@pytest.fixture
def port(tmp_path: Path, workers: Workers, pipelines: Path) -> Port:
    return Port(tmp_path, workers, pipelines)


def code(client: httpx2.Client, path: str = "/connectors", method: str = "GET") -> int:
    """Returns the status of a request on a new connection."""
    with client:
        return int(client.request(method, path).status_code)


def audit(worker: WorkerProcess) -> list[dict[str, Any]]:
    return [line for line in worker.lines if line.get("logger") == "tailrace.audit"]


def test_an_open_port_needs_authentication_and_encryption(port: Port, workers: Workers, pipelines: Path) -> None:
    unprotected = workers.start(pipelines, http=f"0.0.0.0:{free_port()}")
    assert unprotected.ended() == 2
    assert "PortUnprotected" in unprotected.log
    assert "--http-settings" in unprotected.log
    unencrypted = port.start("0.0.0.0")
    assert unencrypted.ended() == 2
    assert "tokens would be sent unencrypted" in unencrypted.log
    assert "behind_tls_proxy" in unencrypted.log
    port.settings["behind_tls_proxy"] = True
    proxied = port.start("0.0.0.0")
    proxied.says("listening")
    port.settings = {"allow": {"variables": ["SHOP_*"]}}
    assert port.start("0.0.0.0").ended() == 2
    port.settings = {"behind_tls_proxy": True}  # without tokens: the proxy brings other machines to loopback
    proxied = port.start("127.0.0.1")
    assert proxied.ended() == 2
    assert "without authentication" in proxied.log
    broken = {"tokens": {"ops": {"role": "admin", "token": "literal-marker-0123456789"}}}
    port.settings = broken
    refused = port.start()
    assert refused.ended() == 2
    assert "http.yaml:" in refused.log
    assert "marker" not in refused.log
    port.settings = {"tokens": {}, "tls": {"certificate": "none.crt", "key": "none.key"}}
    missing = port.start()
    assert missing.ended() == 2
    assert "none.crt" in missing.log


def test_tokens_over_tls(port: Port) -> None:
    port.with_tls()
    worker = port.listening()
    assert worker.url.startswith("https://")
    with port.client(worker) as anybody, port.client(worker, READ) as reader, port.client(worker, ADMIN) as admin:
        assert anybody.get("/livez").status_code == 200
        assert "pipelines" not in anybody.get("/readyz").json()
        for path in GETS:
            assert anybody.get(path).status_code == 401, path
            assert reader.get(path).status_code in (200, 404, 500), path
        for method, path in (
            ("POST", "/connectors"), ("PUT", "/connectors/a/config"), ("DELETE", "/connectors/a"),
            ("PUT", "/admin/loggers/root"), ("POST", "/api/v1/pipelines/a/stop"), ("DELETE", "/api/v1/jobs/a"),
            ("PUT", "/connector-plugins/tailrace.PostgresOutbox/config/validate"), ("POST", "/nothing"),
        ):  # fmt: skip
            assert anybody.request(method, path).status_code == 401, path
            assert reader.request(method, path).status_code == 403, path
            assert admin.request(method, path).status_code not in (401, 403), path
        assert reader.get("/api/v1/pipelines", headers={"authorization": "Bearer x"}).status_code == 401
        assert admin.put("/admin/loggers/tailrace.audit", json={"level": "OFF"}).status_code == 400
        assert admin.put("/admin/loggers/root", json={"level": "OFF"}).status_code == 200
        assert admin.post("/connectors", json={"name": "x", "config": {"a": "body-marker"}}).status_code == 403
        assert anybody.get("/", auth=("kc", READ)).status_code == 200  # as clients of Connect send it
    changes = [line for line in audit(worker) if line["who"] == "token:ops"]
    assert {line["event"] for line in changes} == {"change requested", "change answered"}
    assert changes[-1]["target"] == "/connectors"
    assert changes[-1]["pipeline"] == "x"
    assert changes[-1]["status"] == 403  # the worker keeps no configurations
    assert [line for line in audit(worker) if line["event"] == "refused" and line["who"] == "token:viewer"]
    for secret in (ADMIN, READ, "body-marker"):
        assert secret not in worker.log


def test_client_certificates(port: Port, tmp_path: Path) -> None:
    """One worker, all certificates."""
    port.with_tls(client_ca="authority.pem")
    port.settings["tokens"] = {}
    port.settings["certificates"] = {
        "deployer": {"role": "admin", "subject": "CN=deployer,O=Shop"},
        "prometheus": {"role": "read", "san": "dns:prometheus.monitoring"},
    }
    worker = port.listening()
    deployer = port.authority.issue("deployer")
    assert code(port.client(worker, pair=deployer)) == 200
    assert code(port.client(worker, pair=deployer), "/nothing", "POST") == 404
    prometheus = port.authority.issue("any", dns="prometheus.monitoring")
    assert code(port.client(worker, pair=prometheus), "/metrics") == 200
    assert code(port.client(worker, pair=prometheus), "/nothing", "POST") == 403
    assert code(port.client(worker, pair=port.authority.issue("nobody"))) == 401
    assert code(port.client(worker)) == 401
    assert code(port.client(worker), "/livez") == 200
    stranger = Authority(tmp_path / "stranger", "Tailrace port tests")  # the same name, another key
    for wrong in (
        port.authority.issue("deployer", days=-1),
        port.authority.issue("deployer", self_signed=True),
        stranger.issue("deployer"),
    ):
        with pytest.raises(httpx2.TransportError):
            code(port.client(worker, pair=wrong))
    assert "certificate:CN=deployer,O=Shop" in {line["who"] for line in audit(worker)}


def test_certificates_and_tokens_are_replaced_without_a_restart(port: Port, tmp_path: Path) -> None:
    port.with_tls(client_ca="authority.pem")
    port.settings["certificates"] = {"deployer": {"role": "admin", "subject": "CN=deployer,O=Shop"}}
    worker = port.listening()
    with port.client(worker, READ) as open_before:
        assert open_before.get("/").status_code == 200
        old_client = port.authority.issue("deployer")
        assert code(port.client(worker, pair=old_client)) == 200

        # Half of a rotation: the certificate without its key. The old pair stays in use.
        new = Authority(tmp_path / "new", "another authority")
        pair = new.issue()
        (port.folder / "tls.crt").write_bytes(pair.certificate.read_bytes())
        worker.says("settings of the HTTP port not changed")
        assert code(port.client(worker, READ)) == 200

        port.use(pair)
        (port.folder / "authority.pem").replace(port.folder / "old.pem")
        (port.folder / "authority.pem").write_bytes(new.file.read_bytes())
        (port.folder / "viewer").write_text("another-token-0123456789\n")
        moved = port.folder / "old.pem"

        def rotated() -> bool:
            try:
                return code(port.client(worker, "another-token-0123456789", authority=new.file)) == 200
            except httpx2.TransportError:
                return False

        wait_until(rotated, 60, what="the new certificate and token")
        assert open_before.get("/").status_code == 401  # its connection stays, its token does not
    with pytest.raises(httpx2.TransportError):
        code(port.client(worker, READ, authority=moved))
    assert code(port.client(worker, READ, authority=new.file)) == 401
    # The old authority is not trusted any more, the new one is.
    wait_until(lambda: code(port.client(worker, pair=new.issue("deployer"), authority=new.file)) == 200, 60)
    with pytest.raises(httpx2.TransportError):
        code(port.client(worker, pair=old_client, authority=new.file))
    assert worker.running


def test_limits(port: Port) -> None:
    port.with_tls()
    port.settings["limits"] = {"requests_per_second": 1, "burst": 20, "failures_per_minute": 5}
    worker = port.listening()
    with port.client(worker, READ) as reader, port.client(worker, ADMIN) as admin, port.client(worker) as anybody:
        answers = [reader.get("/") for _ in range(40)]
        assert answers[0].status_code == 200
        refused = next(each for each in answers if each.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert admin.get("/").status_code == 200
        codes = [anybody.get("/", headers={"authorization": f"Bearer guess-{n:016}"}).status_code for n in range(20)]
        assert codes[:5] == [401] * 5
        assert set(codes[6:]) == {429}
        assert admin.get("/").status_code == 200
        assert admin.post("/connectors", content=b"x" * 1_100_000).status_code == 413
        # A refused request with a large body ends at once, and nothing of it is read into memory.
        assert anybody.post("/connectors", content=b"x" * 1_100_000).status_code in (401, 413, 429)


def test_commands_send_a_token(
    port: Port, pipelines: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tailrace … --worker`: the token and the authority come from the environment, never from an argument."""
    port.with_tls()
    (pipelines / "broken.yaml").write_text("pipeline: broken\n")
    worker = port.listening()
    worker.says("invalid", "broken")

    def run(**environ: str) -> str:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, text in environ.items():
            monkeypatch.setenv(name, text)
        return run_locally(capsys, "topics", "apply", "broken", "--yes", "--worker", worker.url)[2]

    authority = {"TAILRACE_WORKER_CA": str(port.authority.file)}
    unknown = run(TAILRACE_WORKER_TOKEN=ADMIN)
    assert "CertificateInvalid" in unknown
    assert "TAILRACE_WORKER_CA" in unknown
    assert "NotAuthenticated" in run(**authority)
    assert "NotAuthorized" in run(TAILRACE_WORKER_TOKEN=READ, **authority)
    done = run(TAILRACE_WORKER_TOKEN_FILE=str(port.folder / "ops"), **authority)
    assert "broken" in done
    assert "NotAuth" not in done

    def changes() -> list[dict[str, Any]]:
        return [line for line in audit(worker) if line.get("operation") == "topics apply" and "status" in line]

    wait_until(lambda: bool(changes()), what="the line with the result")
    [change] = changes()
    assert (change["who"], change["pipeline"]) == ("token:ops", "broken")
    assert (change["status"], change["exit_code"], change["result"]) == (200, 2, "refused")
    with port.client(worker, READ) as viewer, port.client(worker, ADMIN) as admin:
        for path in ("/api/v1/pipelines/broken/events/1", "/api/v1/events/1"):  # keys of events are shown
            assert viewer.get(path).status_code == 403
            assert admin.get(path).status_code != 403
    reader = StatusReader(worker.url, "broken")
    for token, expected in (("", "needs a token"), (READ, "is FAILED")):
        monkeypatch.setenv("TAILRACE_WORKER_TOKEN", token)
        monkeypatch.delenv("TAILRACE_WORKER_TOKEN_FILE", raising=False)
        assert expected in reader.read().sentence


def test_commands_refuse_a_flawed_certificate(
    port: Port, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--worker` with another host name, an unknown authority, an expired and a self-signed certificate."""
    (tmp_path / "tls").mkdir()
    certificates = Certificates(tmp_path / "tls")
    worker = port.listening()
    monkeypatch.setenv("TAILRACE_WORKER_CA", str(certificates.authority))
    monkeypatch.setenv("TAILRACE_WORKER_TOKEN", ADMIN)
    with TlsFront(certificates.server(), int(worker.url.rpartition(":")[2])) as front:
        for flaw in ("", *FLAWS):
            front.context = certificates.server(flaw)
            code, out, error = run_locally(capsys, "status", "none", "--worker", f"https://127.0.0.1:{front.port}")
            assert ("CertificateInvalid" in error) == bool(flaw), (flaw, error)
            assert flaw or "none" in error
            assert code != 0
            assert ADMIN not in f"{out}{error}"
    # Only the request with the good certificate has reached the worker.
    assert len([line for line in audit(worker) if line["event"] == "change requested"]) <= 1


def test_slow_clients_are_disconnected(port: Port) -> None:
    """A TLS handshake that does not end, and headers that do not end."""
    port.with_tls()
    worker = port.listening()
    address = ("127.0.0.1", int(worker.url.rpartition(":")[2]))
    context = ssl.create_default_context(cafile=port.authority.file)
    with socket.create_connection(address) as silent, socket.create_connection(address) as half:
        half.sendall(b"\x16\x03\x01\x02\x00")  # the first bytes of a ClientHello
        with context.wrap_socket(socket.create_connection(address), server_hostname="127.0.0.1") as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n")
            for each in (slow, silent, half):
                each.settimeout(60)
                try:
                    assert each.recv(1) == b""
                except (ConnectionError, ssl.SSLError):
                    pass  # closed as well
    assert code(port.client(worker, READ)) == 200
