"""A connector as a user would run it: `tailrace run orders.yaml`."""

from __future__ import annotations

from pathlib import Path

from tailrace.testkit.demo.command import TailraceProcess


class Connector(TailraceProcess):
    """The process of one pipeline; its log stands beside its file."""

    def __init__(self, file: Path) -> None:
        super().__init__(file.stem, file.parent, ["run", str(file)], working="running")
        self.file = file
