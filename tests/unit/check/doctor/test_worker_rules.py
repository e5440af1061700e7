"""The rules over several pipelines and the machine, at their limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tailrace.check.doctor.bounded import bounded
from tailrace.check.doctor.machine import available_memory, read_machine
from tailrace.check.doctor.report import Diagnosis, Report
from tailrace.check.doctor.worker_rules import (
    DiskFacts,
    MachineFacts,
    PipelineIdentity,
    check_machine,
    check_pipelines,
)
from tailrace.check.findings import note, warning
from tailrace.check.result import State, ok
from tailrace.errors import SourceUnavailable

ONE = PipelineIdentity("a", "a.yaml", "db:5432/shop", "public.outbox", "slot", frozenset({"orders"}))
FINE = MachineFacts(65_536, 8 << 30, (DiskFacts("/", "settings", 50 << 30, 100 << 30),))


def pair(other: PipelineIdentity) -> list[str]:
    return [each.code for each in check_pipelines([ONE, other])]


def test_pipelines_that_share() -> None:
    other = replace(ONE, name="b", slot="slot_b", outbox="public.other", topics=frozenset({"payments"}))
    assert pair(other) == []
    assert pair(replace(other, name="a")) == ["same-name"]
    assert pair(replace(other, slot="slot")) == ["same-slot"]
    assert pair(replace(other, slot="slot", server="other:5432/shop")) == []
    assert pair(replace(other, topics=ONE.topics)) == ["shared-topic"]
    assert pair(replace(other, outbox=ONE.outbox, topics=ONE.topics)) == ["same-events"]
    templates = replace(ONE, topics=frozenset(), template="{stream}")
    assert check_pipelines([templates, replace(templates, name="b", slot="", outbox="x")]) == []


def test_the_machine() -> None:
    def codes(facts: MachineFacts) -> list[tuple[str, State]]:
        return [(each.code, each.state) for each in check_machine(facts)]

    assert codes(FINE) == []
    assert codes(replace(FINE, open_files=4095)) == [("open-files", State.WARN)]
    assert codes(replace(FINE, available=(100 << 20) - 1)) == [("memory", State.WARN)]
    assert codes(replace(FINE, available=5, pipelines=3, running=3)) == []
    assert codes(replace(FINE, available=None)) == []
    low = DiskFacts("/it's", "settings", 1 << 30, 100 << 30)
    assert codes(replace(FINE, disks=(low,))) == [("disk-space", State.WARN)]
    assert codes(replace(FINE, disks=(replace(low, total=10 << 30),))) == []
    assert codes(replace(FINE, disks=(replace(low, free=5),))) == [("disk-space", State.FAIL)]


def test_the_memory_of_a_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    assert available_memory(tmp_path, meminfo) == 4000 * 1024
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    assert available_memory(tmp_path, meminfo) == 1_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path, meminfo) == 4000 * 1024
    assert available_memory(tmp_path, tmp_path / "none") is None


def test_this_machine_is_read(tmp_path: Path) -> None:
    found = read_machine({tmp_path: "settings", tmp_path / "none": "nothing"}, 2)
    assert found.open_files > 0
    assert found.pipelines == 2
    assert found.disks


def test_a_probe_that_does_not_end_is_a_finding() -> None:
    import threading

    never = threading.Event()
    (found,) = bounded("the server", lambda: [ok("x", "")] if never.wait(60) else [], 0.05)
    never.set()
    assert (found.code, found.state) == ("not-checked", State.FAIL)
    assert "the server" in found.found


def test_a_probe_that_fails_is_a_finding() -> None:
    def fails() -> list[object]:
        raise SourceUnavailable("gone", remedy="Start it.")

    (found,) = bounded("the server", fails)  # type: ignore[arg-type]
    assert (found.code, found.state) == ("not-checked", State.WARN)
    assert found.fixes[0].text == "Start it."


def test_the_report() -> None:
    results = (ok("role", "fine"), note("auto-create", "x"), warning("wal-sender-timeout-off", "y"))
    report = Report((Diagnosis("orders", "orders.yaml", results),), Diagnosis("", "", ()))
    assert report.ok(strict=False)
    assert not report.ok(strict=True)
    shown = report.to_json(strict=True)
    assert (shown["format"], shown["ok"], shown["problems"], shown["warnings"], shown["notes"]) == (1, False, 0, 1, 1)
    assert [each["code"] for each in shown["pipelines"][0]["findings"]] == ["wal-sender-timeout-off", "auto-create"]
    assert shown["pipelines"][0]["findings"][0].keys() == {"code", "area", "severity", "what", "why", "fixes"}
