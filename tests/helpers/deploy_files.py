"""Reads the files of compose/ and deploy/ for the tests: commands, queries, and the steps of the Dockerfile."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from tailrace.cli.commands import app
from tailrace.projections.core.metrics import METRICS as PROJECTION_METRICS
from tailrace.worker.metric_table import ALIASES, METRICS

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose" / "compose.yaml"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
ALERT_TESTS = ROOT / "deploy" / "prometheus" / "alerts_test.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "tailrace.json"
DOCKERFILE = ROOT / "Dockerfile"
CHART = ROOT / "deploy" / "helm" / "tailrace"
PREFIX = "tailrace_"

TARGET_LABELS = {"job", "instance", "namespace"}
"""Labels that Prometheus adds to each series of a target."""
OTHER_METRICS: dict[str, set[str]] = {
    "up": set(),
    "ALERTS": {"alertname", "alertstate", "severity"},
    "process_resident_memory_bytes": set(),
    "process_cpu_seconds_total": set(),
}
"""Metrics that Prometheus itself or prometheus-client's process collector provides."""
_FUNCTIONS = {
    *("absent", "by", "without", "on", "and", "or", "unless", "bool", "sum", "max", "min", "count", "rate", "increase"),
    *("min_over_time", "predict_linear", "histogram_quantile", "time", "vector", "sort_desc", "Inf"),
}
_STRINGS = re.compile(r"\"[^\"]*\"|'[^']*'")
_DURATIONS = re.compile(r"\[[^\]]*\]")
_GROUPING = re.compile(r"\b(?:by|without|on)\s*\(([^)]*)\)")
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_SELECTOR = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)\s*\{([^}]*)\}")


def compose() -> Any:
    return yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_bytes())


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Yields the title of the panel and the query, with Grafana's variables replaced."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "5m").replace("$pipeline", ".*")
            yield panel["title"], query


def known_metrics() -> dict[str, set[str]]:
    """Returns the labels of every series that a worker or a projection exports, by its name."""
    known: dict[str, set[str]] = {name: set(labels) for name, labels in OTHER_METRICS.items()}
    for metric in (*METRICS, *PROJECTION_METRICS):
        for name, labels in _series(PREFIX + metric.name, metric.kind):
            known.setdefault(name, set()).update(metric.labels, labels)
    for alias in ALIASES:
        known[alias.name] = set(alias.labels)
    return known


def _series(name: str, kind: str) -> Iterator[tuple[str, set[str]]]:
    if kind == "histogram":
        yield from ((name + "_bucket", {"le"}), (name + "_sum", set()), (name + "_count", set()))
    else:
        yield name, set()


def used_metrics(query: str) -> dict[str, set[str]]:
    """Returns the labels by which a query selects or groups each of its metrics."""
    selected: dict[str, set[str]] = {}
    for match in _SELECTOR.finditer(query):
        labels = {part.split("=")[0].split("!")[0].strip() for part in _STRINGS.sub("", match[2]).split(",")}
        selected.setdefault(match[1], set()).update(filter(None, labels))
    grouped = {label.strip() for match in _GROUPING.finditer(query) for label in match[1].split(",")}
    plain = _SELECTOR.sub(r"\1", query)
    plain = _GROUPING.sub("by ", _DURATIONS.sub("", _STRINGS.sub("", plain)))
    names = {name for name in _NAME.findall(plain) if name not in _FUNCTIONS}
    return {name: (selected.get(name, set()) | grouped) - TARGET_LABELS for name in names}


def unknown_in(query: str) -> list[str]:
    """Returns the metrics and labels of a query that nothing exports. A grouping label must fit one of its metrics."""
    known = known_metrics()
    used = used_metrics(query)
    problems = [f"no metric {name}" for name in used if name not in known]
    available = {label for name in used for label in known.get(name, set())}
    selected = {match[1]: match[2] for match in _SELECTOR.finditer(query)}
    for name, labels in used.items():
        wrong = labels - (known.get(name, set()) if name in selected and len(used) == 1 else available)
        problems += [f"{name} has no label {label}" for label in sorted(wrong)]
    return problems


def parse_command(arguments: Sequence[str]) -> dict[str, Any]:
    """Parses a command line of `tailrace` with the command's own parser, without running it."""
    command: Any = typer.main.get_command(app)
    name, rest, context = "tailrace", list(arguments), None
    while True:
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "resolve_command"):
            return {"command": context.command_path, **context.params}
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of the Dockerfile."""

    stage: str
    word: str
    text: str

    @property
    def arguments(self) -> list[str]:
        """The words of the instruction, or the items of its JSON list."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


def dockerfile_steps() -> list[Step]:
    """Returns the instructions of the Dockerfile, without comments. A stage has a name or a number."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    steps: list[Step] = []
    stage, count = "", 0
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        word, _, text = line.partition(" ")
        if word == "FROM":
            named = re.search(r" AS (\S+)$", line)
            stage, count = (named[1] if named else str(count)), count + 1
        steps.append(Step(stage, word, text.strip()))
    return steps
