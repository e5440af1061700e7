"""`--keep`: everything goes on, slowly, for a person to look around in."""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path

from tailrace.demo.scene import Scene
from tailrace.demo.show import Show
from tailrace.proof.workload import Writer
from tailrace.stack import wait_until

RATE = 5.0
"""Transactions a second: slow enough to read along."""
LOOK_SECONDS = 0.5


def linger(scene: Scene, show: Show, *, seed: int) -> None:
    """Runs connector and writer until Ctrl-C."""
    scene.start_connector()
    wait_until(lambda: scene.connector_ready, 30, what="the connector's start")
    writer = Writer(scene.dsn, seed=seed + 1)
    try:
        writer.start(rate=RATE)
        show.say(guide(scene))
        while scene.connector_ready and writer.error is None:
            time.sleep(LOOK_SECONDS)
    finally:
        writer.stop()


def guide(scene: Scene) -> list[str]:
    """How to connect, look and stop."""
    file = shlex.quote(str(scene.file))
    reader = f"read_committed -t {scene.topic}"
    return [
        "",
        f"Everything runs on, now with {RATE:.0f} transactions a second. In another terminal:",
        "",
        f"  watch the events   tailrace tail {file}",
        f"  where it stands    tailrace status {file}",
        f"  the outbox         {_psql(scene)} {shlex.quote(scene.url)}",
        f"  any consumer       kcat -C -b {scene.bootstrap} -X isolation.level={reader}",
        f"                     kafka-console-consumer.sh --bootstrap-server {scene.bootstrap} --topic {scene.topic} \\",
        "                       --isolation-level read_committed --from-beginning",
        f"  dead letters       the topic {scene.letters}",
        f"  the files          {scene.folder} (pipeline, schemas/, topics/, connector.log)",
        "",
        "Ctrl-C ends everything and removes the folder.",
    ]


def _psql(scene: Scene) -> str:
    """The user's own psql, or else the one beside our server."""
    programs: Path | None = scene.servers.postgres.bin_dir
    if shutil.which("psql") is None and programs is not None and (programs / "psql").exists():
        return shlex.quote(str(programs / "psql"))
    return "psql"
