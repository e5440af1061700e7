"""Part of `make bench`: memory and CPU of a worker with 1, 8 and 24 pipelines, each in its own process, when idle.

Each pipeline has its own database and has published events before. PSS counts a page that several processes share in
equal parts, so that the sum over all processes is what the machine needs; USS is what would be free if a process ended.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg

from benchmarks.backlog import EVENTS_DDL, SCHEMA
from benchmarks.processes import watch, write_pipeline
from tailrace.testkit.stack import Stack
from tailrace.testkit.stack.ports import free_port

COUNTS = (1, 8, 24)
EVENTS = 1000
SETTLE_SECONDS = 20.0
"""Time after the last event: caches fill, and what the start needed is freed."""
CPU_SECONDS = 20.0
AIM_MB = 35.0
RESULTS = Path(__file__).parent / "results" / "worker.json"
MB = 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", type=int, nargs="*", help="other numbers of pipelines (not saved)")
    counts = tuple(parser.parse_args().pipelines or COUNTS)
    with Stack("16", progress=_say) as stack, tempfile.TemporaryDirectory() as name:
        measured = [_measure(stack, Path(name) / str(count), count) for count in counts]
    first, last = measured[0], measured[-1]
    more = last["pipelines"] - first["pipelines"]
    further = (last["total_pss_mb"] - first["total_pss_mb"]) / more if more else 0.0
    result = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "events_before": EVENTS,
        "further_pipeline_pss_mb": round(further, 1),
        "measured": measured,
    }
    _say(f"each further pipeline: {further:.1f} MB (aim: at most {AIM_MB:.0f} MB)")
    if counts == COUNTS:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(further > AIM_MB)


def _measure(stack: Stack, folder: Path, count: int) -> dict[str, Any]:
    """Runs a worker with that many pipelines until they are idle."""
    folder.mkdir()
    dsns = [_pipeline(stack, folder, f"memory_{count}_{number}") for number in range(count)]
    log = folder / "worker.log"
    command = [sys.executable, "-m", "tailrace", "worker", str(folder), "--http", str(free_port()), "--log-json"]
    with log.open("wb") as output:
        worker = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        watch(lambda: log.read_text().count('"event": "running"') >= count or worker.poll() is not None, 300)
        for dsn in dsns:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("CALL backlog(%s, %s)", (EVENTS // 100, 100))
        for dsn in dsns:
            watch(partial(_is_drained, dsn), 300)
        time.sleep(SETTLE_SECONDS)
        found = _memory(worker.pid, log)
    finally:
        worker.terminate()
        worker.wait(60)
    for dsn in dsns:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
    _say(f"{count:3} pipelines: {found}")
    return {"pipelines": count, **found}


def _pipeline(stack: Stack, folder: Path, name: str) -> str:
    dsn = stack.postgres.create_database(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(EVENTS_DDL)
    write_pipeline(folder, name, dsn, stack.kafka.bootstrap, SCHEMA)
    return dsn


def _is_drained(dsn: str) -> bool:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT pg_current_wal_lsn() - confirmed_flush_lsn < 65536 FROM pg_replication_slots"
            " WHERE database = current_database()"
        ).fetchone()
    return bool(row and row[0])


def _memory(worker: int, log: Path) -> dict[str, Any]:
    """Returns the memory of the worker, its helpers and the pipeline processes, in MB."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    pipelines = {line["pid"] for line in lines if line["event"] == "process started"}
    total, each_pss, each_uss, threads = 0.0, [], [], []
    processes = [psutil.Process(worker), *psutil.Process(worker).children(recursive=True)]
    used = {process.pid: _cpu_seconds(process) for process in processes}
    time.sleep(CPU_SECONDS)
    busy = {process.pid: (_cpu_seconds(process) - used[process.pid]) / CPU_SECONDS * 100 for process in processes}
    for process in processes:
        memory = process.memory_full_info()
        total += memory.pss / MB
        if process.pid in pipelines:
            each_pss.append(memory.pss / MB)
            each_uss.append(memory.uss / MB)
            threads.append(process.num_threads())
    return {
        "total_pss_mb": round(total, 1),
        "worker_pss_mb": round(total - sum(each_pss), 1),
        "pipeline_pss_mb": round(sum(each_pss) / len(each_pss), 1),
        "pipeline_uss_mb": round(sum(each_uss) / len(each_uss), 1),
        "threads": max(threads),
        "pipeline_cpu_percent": round(sum(busy[pid] for pid in busy if pid in pipelines) / len(each_pss), 2),
        "worker_cpu_percent": round(sum(busy[pid] for pid in busy if pid not in pipelines), 2),
    }


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
