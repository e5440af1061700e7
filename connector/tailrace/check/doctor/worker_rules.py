"""Rules over several pipelines of a worker, and over its machine. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from tailrace.check.findings import advice, note, problem, settings, shell, warning
from tailrace.check.result import CheckResult, human_bytes

PIPELINE_BYTES = 100 << 20
"""About the memory of a pipeline process under load (docs/benchmarks.md)."""
FEW_FILES = 4096
WANTED_FILES = 65_536
LOW_BYTES, LOW_SHARE = 2 << 30, 0.05
FULL_BYTES = 200 << 20


@dataclass(frozen=True, slots=True)
class PipelineIdentity:
    """What two pipelines must not share. `server` and `outbox` name no credentials."""

    name: str
    file: str
    server: str
    outbox: str
    slot: str
    topics: frozenset[str]
    template: str | None = None


@dataclass(frozen=True, slots=True)
class DiskFacts:
    folder: str
    purpose: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """`available` is the free memory, of the machine or of the container; None if it is unknown."""

    open_files: int
    available: int | None
    disks: tuple[DiskFacts, ...]
    pipelines: int = 1
    running: int = 0
    """How many of the pipelines run here already: their memory is in use."""


def check_pipelines(pipelines: Sequence[PipelineIdentity]) -> list[CheckResult]:
    return [finding for one, other in combinations(pipelines, 2) for finding in _pair(one, other)]


def _pair(one: PipelineIdentity, other: PipelineIdentity) -> Iterator[CheckResult]:
    if one.name == other.name:
        fix = settings(other.file, {"pipeline": f"{other.name}-2"})
        yield problem("same-name", f"{one.file} and {other.file} both have the pipeline {one.name}", fix)
    both = f"{one.name} and {other.name}"
    if one.slot and one.slot == other.slot and one.server == other.server:
        name = f"tailrace_{other.name.replace('-', '_')}"
        again = name if name != one.slot else f"{name}_2"
        fix = settings(other.file, {"source": {"slot": again, "publication": again}})
        yield problem("same-slot", f"{both} use the slot {one.slot} of {one.server}", fix)
    shared = sorted(one.topics & other.topics)
    if one.template and one.template == other.template:
        shared.append(one.template)
    if not shared:
        return
    topics = ", ".join(shared[:3])
    if (one.server, one.outbox) == (other.server, other.outbox):
        remedy = advice("Run one of them, or give their rules different topics (match.pipeline, topics.template).")
        yield warning("same-events", f"{both} publish {one.outbox} to the same topics: {topics}", remedy)
    elif shared != [one.template]:
        remedy = advice("Give each its own topics, unless their consumers need no order between them.")
        yield note("shared-topic", f"{both} publish different outboxes to {topics}", remedy)


def check_machine(facts: MachineFacts) -> list[CheckResult]:
    found: list[CheckResult] = []
    if facts.open_files < FEW_FILES:
        fix = shell(f"ulimit -n {WANTED_FILES}  # before the start; with systemd: LimitNOFILE={WANTED_FILES}")
        found.append(warning("open-files", f"a process may open {facts.open_files} files", fix))
    needed = PIPELINE_BYTES * max(0, facts.pipelines - facts.running)
    if facts.available is not None and facts.available < needed:
        what = f"{human_bytes(facts.available)} are available, and {facts.pipelines - facts.running} pipelines that do "
        what += f"not run yet need about {human_bytes(needed)}"
        found.append(warning("memory", what, advice("Give the machine or the container more memory.")))
    for disk in facts.disks:
        if disk.free > LOW_BYTES or disk.free > LOW_SHARE * disk.total:
            continue
        what = f"{human_bytes(disk.free)} of {human_bytes(disk.total)} are free in {disk.folder} ({disk.purpose})"
        fix = shell(f"du -xsh {shlex.quote(disk.folder)}/* | sort -h  # shows what uses it")
        found.append((problem if disk.free < FULL_BYTES else warning)("disk-space", what, fix))
    return found
