"""`--worker URL`: a command on a worker prints the same and ends with the same exit code as a local one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from helpers.api import Api, run_locally, serve
from helpers.parking import BAD, good
from helpers.shop import Shop
from helpers.worker import Workers, put_pipeline
from tailrace.testkit.stack import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pipelines"


@pytest.fixture
def served(workers: Workers, folder: Path, shop: Shop) -> tuple[Api, Path]:
    """A worker whose pipeline is stopped, so that two calls see the same; and the pipeline's file."""
    file = put_pipeline(folder, shop, outbox={"columns": {"timestamp": "created_at"}}, retention={"after": "1d"})
    api = serve(workers.start(folder), shop)
    ids = [shop.insert(good(number), key=f"k{number}") for number in range(1, 4)]
    shop.insert(BAD)
    wait_until(lambda: set(ids) <= {each.id for each in shop.published()}, 60, what="the events")
    api.post(f"/pipelines/{shop.name}/stop")
    api.is_in(shop.name, "STOPPED")
    wait_until(lambda: api.get(f"/pipelines/{shop.name}/status")["state"] == "STOPPED", 60, what="STOPPED")
    return api, file


def changing(text: str) -> str:
    """Leaves out what differs from call to call: durations, rates, and the end of the server's log (verify)."""
    log_end = r"\"position\": \"[^\"]*\", \"passed\": \w+"
    return re.sub(rf"[\d.,]+ (s|ms|kB|MB|B|a second)\b|\"seconds\": [\d.]+|lag_\w+\": [\d.]+|{log_end}", "…", text)


@pytest.mark.slow
def test_output_and_exit_code_are_the_same(
    served: tuple[Api, Path], shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    api, file = served
    published = shop.published()[0].id
    calls = [
        (["dlq", "list"], []),
        (["dlq", "list"], ["--all", "--limit", "5", "--type", "Order*"]),
        (["dlq", "show"], ["0-0"]),
        (["dlq", "show"], ["0-777"]),
        (["dlq", "parked"], []),
        (["dlq", "redrive"], ["--all-open", "--dry-run"]),
        (["dlq", "redrive"], ["--all-open"]),
        (["position", "history"], []),
        (["position", "reset"], ["--to", "nonsense", "--yes"]),
        (["route", "explain"], ["--type", "OrderPlaced", "--aggregate", "order", "--key", "k1"]),
        (["route", "explain"], ["--type", "Unknown"]),
        (["schemas", "list"], []),
        (["schemas", "check"], []),
        (["topics", "plan"], []),
        (["verify"], ["--wait", "0"]),
        (["recover", "apply"], ["--yes"]),
        (["status"], []),
        (["check"], ["--offline"]),
        (["archive", "list"], []),
        (["retention", "plan"], []),
        (["retention", "apply"], ["--ignore-pipeline", "other"]),
    ]
    for words, more in calls:
        for form in ([], ["--json"]):
            local = run_locally(capsys, *words, file, *more, *form)
            remote = run_locally(capsys, *words, shop.name, *more, *form, "--worker", api.worker.url)
            assert [changing(str(each)) for each in remote] == [changing(str(each)) for each in local], words
    local = run_locally(capsys, "trace", published, file)
    assert run_locally(capsys, "trace", published, shop.name, f"--worker={api.worker.url}") == local
    assert run_locally(capsys, "status", shop.name, "--nonsense", "--worker", api.worker.url)[0] == 2


def test_plans_and_payloads_are_files_here(
    served: tuple[Api, Path],
    shop: Shop,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, _ = served
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TAILRACE_WORKER", api.worker.url)
    event = shop.published()[0].id
    api.post(f"/pipelines/{shop.name}/start")
    api.is_in(shop.name, "RUNNING")
    code, out, err = run_locally(capsys, "replay", "plan", shop.name, "--from-table", "--id", event)
    assert code == 0, err
    (plan,) = here.iterdir()
    assert plan.name in out
    assert re.fullmatch(rf"{shop.name}\.replay-\w+\.json", plan.name)
    code, out, err = run_locally(capsys, "replay", "apply", plan)
    assert code == 0, err
    assert sum(each.id == event for each in shop.published()) == 2
    code, out, _ = run_locally(capsys, "replay", "apply", plan, "--json")
    assert (code, json.loads(out)["published"]) == (0, 0)
    code, out, err = run_locally(
        capsys, "replay", "plan", shop.name, "--from-table", "--id", event, "--output", "own.json", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["file"] == "own.json"
    assert json.loads((here / "own.json").read_text())["id"] == json.loads(out)["id"]
    assert run_locally(capsys, "replay", "plan", shop.name, "--from-table", "--output", "own.json")[0] == 2
    payload = here / "fixed.json"
    payload.write_text(good(9).replace("1.5", "1.50"))
    code, out, err = run_locally(capsys, "dlq", "redrive", shop.name, "0-0", "--payload", payload, "--yes")
    assert code == 0, err
    assert "1 redriven" in out
    monkeypatch.delenv("TAILRACE_WORKER")


def test_a_change_is_not_made_without_a_confirmation(
    served: tuple[Api, Path], shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    api, _ = served
    for words in (["dlq", "redrive", shop.name, "0-0"], ["dlq", "discard", shop.name, "0-0", "--why", "x"]):
        code, _, err = run_locally(capsys, *words, "--worker", api.worker.url)
        assert code == 2
        assert "no terminal" in err
    assert len(api.get(f"/pipelines/{shop.name}/dlq/list")["letters"]) == 1


def test_errors_of_the_connection_are_clear(
    served: tuple[Api, Path], shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    api, file = served
    url = api.worker.url

    def fails(code: int, *words: object) -> str:
        found, out, err = run_locally(capsys, *words)
        assert (found, out) == (code, ""), err
        return err

    assert "is not the name of a pipeline" in fails(2, "status", file, "--worker", url)
    assert f"This worker has: {shop.name}" in fails(2, "status", "other", "--worker", url)
    assert "cannot be run on a worker" in fails(2, "run", shop.name, "--worker", url)
    assert "--watch cannot be used" in fails(2, "status", shop.name, "--watch", "--worker", url)
    assert "is not the address" in fails(2, "status", shop.name, "--worker", "ftp://x")
    assert "several pipelines" in fails(2, "topics", "plan", shop.name, "other", "--worker", url)
    assert "no pipeline is named" in fails(2, "dlq", "list", "--worker", url)
    assert "cannot be read" in fails(2, "replay", "apply", "missing.json", "--worker", url)
    assert "is not a worker" in fails(3, "status", shop.name, "--worker", f"{url}/elsewhere")
    api.worker.stop()
    error = json.loads(fails(3, "status", shop.name, "--json", "--worker", url))
    assert error["error"] == "WorkerUnavailable"


def test_the_command_ends_with_its_connection(served: tuple[Api, Path], shop: Shop) -> None:
    api, _ = served
    lock = psycopg.connect(shop.dsn)
    lock.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")

    before = {each.pid for each in api.worker.children()}

    def started() -> tuple[subprocess.Popen[str], set[int]]:
        """Starts the command; returns the client, and the processes of the command on the worker."""
        words = [sys.executable, "-m", "tailrace", "verify", shop.name, "--worker", api.worker.url]
        waiting = _readers(shop)
        client = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: _readers(shop) > waiting, 60, what="the command on the worker")
        return client, {each.pid for each in api.worker.children()} - before

    client, processes = started()
    assert processes
    client.kill()
    client.communicate()
    wait_until(lambda: not any(map(psutil.pid_exists, processes)), 60, what="the end of the command")
    # The worker is killed while a command runs.
    client, processes = started()
    api.worker.kill()
    _, err = client.communicate(timeout=60)
    assert client.returncode == 3
    assert "WorkerUnavailable" in err
    wait_until(lambda: not any(map(psutil.pid_exists, processes)), 60, what="the end of the command")
    lock.close()


def _readers(shop: Shop) -> int:
    """Returns how many sessions wait for the lock of the outbox."""
    with shop.postgres.connect() as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'", (shop.name,)
        ).fetchone()
    return int(found[0]) if found else 0
