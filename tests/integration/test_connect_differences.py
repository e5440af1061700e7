"""The same requests to a real worker of Kafka Connect and to Tailrace: docs/connect_api.md lists what differs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from helpers.connect import ConnectWorker, config_of
from helpers.connect_runtime import FILE_SOURCE, ConnectRuntime
from helpers.shop import Shop
from tailrace.testkit.stack import KafkaBroker, StackError, wait_until

DOCS = Path(__file__).parents[2] / "docs" / "connect_api.md"
MAPS = ("config", "partition", "offset")
LISTS = ("topics", "offsets")
"""Fields whose content belongs to a connector, and lists that are filled some time after its start."""


@dataclass(frozen=True)
class Target:
    """A worker, its connector, and values that differ between the two."""

    url: str
    config: dict[str, str]
    plugin: str
    offset: dict[str, Any]

    def send(self, step: Step) -> httpx2.Response:
        body = step.body
        if body in ("CONFIG", "CREATE"):
            given: Any = {**self.config, **step.more}
            body = json.dumps({"name": step.name, "config": given} if body == "CREATE" else given)
        elif body == "OFFSETS":
            body = json.dumps(self.offset)
        path = step.path.replace("PLUGIN", self.plugin)
        return httpx2.request(step.method, f"{self.url}{path}", content=body, headers=dict(step.headers), timeout=90)


@dataclass(frozen=True)
class Step:
    """One request, or with `wait` a state to wait for."""

    label: str
    method: str = "GET"
    path: str = ""
    body: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    name: str = "cmp"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    wait: str = ""


def request(method: str, path: str, body: str | None = None, label: str = "", **more: Any) -> Step:
    shown = label or f"{method} {path}"
    return Step(shown, method, path, body, **more)


def wait(state: str) -> Step:
    return Step(f"wait for {state}", wait=state)


ONE = "/connectors/cmp"
UNKNOWN = [
    request(method, f"/connectors/unknown{path}", "{}" if method == "PATCH" else None)
    for method, path in (
        ("GET", ""), ("DELETE", ""), ("GET", "/config"), ("PATCH", "/config"), ("GET", "/status"), ("GET", "/tasks"),
        ("POST", "/restart"), ("POST", "/restart?includeTasks=true"), ("PUT", "/pause"), ("PUT", "/resume"),
        ("PUT", "/stop"), ("GET", "/tasks-config"), ("GET", "/tasks/0/status"), ("POST", "/tasks/0/restart"),
        ("GET", "/topics"), ("PUT", "/topics/reset"), ("GET", "/offsets"), ("DELETE", "/offsets"),
    )
]  # fmt: skip
STEPS = [
    request("GET", "/"),
    request("GET", "/health"),
    request("GET", "/connectors", label="GET /connectors without connectors"),
    request("POST", "/connectors", "CREATE"),
    wait("RUNNING"),
    request("POST", "/connectors", "CREATE", label="POST /connectors with a name that exists"),
    request("GET", "/connectors"),
    request("GET", "/connectors/"),
    request("GET", "/connectors?expand=status&expand=info"),
    request("GET", "/connectors?expand=other"),
    request("GET", ONE),
    request("GET", f"{ONE}/"),
    request("GET", f"{ONE}/config"),
    request("GET", f"{ONE}/status"),
    request("GET", f"{ONE}/tasks"),
    request("GET", f"{ONE}/tasks-config"),
    request("GET", f"{ONE}/tasks/0/status"),
    request("GET", f"{ONE}/tasks/9/status"),
    request("GET", f"{ONE}/tasks/x/status"),
    request("GET", f"{ONE}/topics"),
    request("PUT", f"{ONE}/topics/reset"),
    request("GET", f"{ONE}/offsets"),
    request("PATCH", f"{ONE}/offsets", "OFFSETS", label="PATCH offsets of a running connector"),
    request("DELETE", f"{ONE}/offsets", label="DELETE offsets of a running connector"),
    request("PATCH", f"{ONE}/config", '{"tasks.max": "1"}'),
    request("PUT", f"{ONE}/config", "CONFIG", more={"tasks.max": 1}, label="PUT config with a number"),
    request("PUT", f"{ONE}/config", "CONFIG", more={"x": None}, label="PUT config with null"),
    request("PUT", f"{ONE}/config", "CONFIG", more={"x": {"y": "z"}}, label="PUT config with an object as value"),
    request("PUT", f"{ONE}/config", "CONFIG", more={"name": "other"}, label="PUT config with another name"),
    request("PUT", f"{ONE}/config", "CONFIG", more={"unknown.key": "1"}, label="PUT config with an unknown key"),
    request("PUT", f"{ONE}/config", "CONFIG"),
    wait("RUNNING"),
    request("POST", f"{ONE}/restart"),
    wait("RUNNING"),
    request("POST", f"{ONE}/restart?includeTasks=true"),
    wait("RUNNING"),
    request("POST", f"{ONE}/restart?onlyFailed=true"),
    request("POST", f"{ONE}/restart?includeTasks=nonsense"),
    wait("RUNNING"),
    request("POST", f"{ONE}/tasks/0/restart"),
    request("POST", f"{ONE}/tasks/5/restart"),
    wait("RUNNING"),
    request("PUT", f"{ONE}/pause"),
    wait("PAUSED"),
    request("GET", f"{ONE}/status", label="GET status of a paused connector"),
    request("PUT", f"{ONE}/resume"),
    wait("RUNNING"),
    request("PUT", f"{ONE}/stop"),
    wait("STOPPED"),
    request("GET", f"{ONE}/status", label="GET status of a stopped connector"),
    request("GET", ONE, label="GET a stopped connector"),
    request("GET", f"{ONE}/tasks", label="GET tasks of a stopped connector"),
    request("GET", f"{ONE}/tasks/0/status", label="GET the task of a stopped connector"),
    request("PATCH", f"{ONE}/offsets", "OFFSETS", label="PATCH offsets of a stopped connector"),
    request("PATCH", f"{ONE}/offsets", "{}", label="PATCH offsets with {}"),
    request("PATCH", f"{ONE}/offsets", "[]", label="PATCH offsets with []"),
    request("PATCH", f"{ONE}/offsets", '{"offsets": [{"partition": {"bad": "x"}, "offset": {"lsn": 1}}]}',
            label="PATCH offsets of an unknown partition"),
    request("DELETE", f"{ONE}/offsets", label="DELETE offsets of a stopped connector"),
    request("POST", "/connectors", "{bad", label="POST /connectors with bad JSON"),
    request("POST", "/connectors", "", label="POST /connectors without a body"),
    request("POST", "/connectors", "[]", label="POST /connectors with []"),
    request("POST", "/connectors", '{"name": "q"}', label="POST /connectors without a configuration"),
    request("POST", "/connectors", '{"name": "q", "config": {}}', label="POST /connectors with an empty configuration"),
    request("POST", "/connectors", '{"name": "q", "config": {"connector.class": "Nope"}}',
            label="POST /connectors with an unknown class"),
    request("POST", "/connectors", '{"name": "q", "config": {}, "more": 1}',
            label="POST /connectors with an unknown field"),
    request("POST", "/connectors", '{"name": "q", "config": {}, "initial_state": "SLEEPING"}',
            label="POST /connectors with an unknown state"),
    request("POST", "/connectors", "CREATE", name="", label="POST /connectors with an empty name"),
    request("POST", "/connectors", "CREATE", name="Upper Case", label="POST /connectors with capitals and spaces"),
    request("POST", "/connectors", "a=b", headers=(("Content-Type", "text/plain"),),
            label="POST /connectors with text/plain"),
    *UNKNOWN,
    request("GET", "/unknown"),
    request("POST", "/"),
    request("DELETE", "/connectors"),
    request("PUT", ONE),
    request("OPTIONS", "/connectors"),
    request("HEAD", "/connectors"),
    request("GET", "/connectors/a%2Fb"),
    request("GET", "/connector-plugins"),
    request("GET", "/connector-plugins?connectorsOnly=false"),
    request("GET", "/connector-plugins/PLUGIN/config"),
    request("GET", "/connector-plugins/Unknown/config"),
    request("PUT", "/connector-plugins/PLUGIN/config/validate", "CONFIG"),
    request("PUT", "/connector-plugins/PLUGIN/config/validate", '{"connector.class": "Other"}',
            label="PUT validate with another class"),
    request("PUT", "/connector-plugins/PLUGIN/config/validate", "{}", label="PUT validate without a class"),
    request("PUT", "/connector-plugins/Unknown/config/validate", '{"connector.class": "Unknown"}',
            label="PUT validate of an unknown class"),
    request("DELETE", ONE),
    request("DELETE", ONE, label="DELETE a connector again"),
]  # fmt: skip


def shape(value: Any, key: str = "") -> str:
    """The shape of JSON in a few words: names of fields, types of values."""
    if key in MAPS and isinstance(value, dict):
        return "map"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {shape(inner, name)}" for name, inner in sorted(value.items())) + "}"
    if key in LISTS and isinstance(value, list):
        return "list"
    if key == "group":
        return "text or null"
    if isinstance(value, list):
        return f"[{shape(value[0], key)}]" if value else "[]"
    return {bool: "boolean", int: "number", float: "number", str: "text", type(None): "null"}[type(value)]


NAMED = {
    "error": "{error_code: number, message: text}",
    "info": "{config: map, name: text, tasks: [], type: text}",
    "info with a task": "{config: map, name: text, tasks: [{connector: text, task: number}], type: text}",
    "validation": shape(
        {
            "configs": [
                {
                    "definition": {
                        "default_value": None, "dependents": [], "display_name": "", "documentation": "", "group": "",
                        "importance": "", "name": "", "order": 1, "required": True, "type": "", "width": "",
                    },
                    "value": {"errors": [""], "name": "", "recommended_values": [], "value": None, "visible": True},
                }
            ],
            "error_count": 1, "groups": [""], "name": "",
        }
    ),
}  # fmt: skip
"""Short names of long shapes."""


def described(answer: httpx2.Response, step: Step) -> str:
    """Status, headers that matter, and the shape of the body."""
    parts = [str(answer.status_code)]
    for name in ("location", "allow"):
        if name in answer.headers and (name, answer.status_code) != ("allow", 405):
            parts.append(f"with {name.capitalize()}")
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if kind not in ("", "application/json"):
        parts.append(kind)
    elif answer.content:
        # Errors without a route have JSON, but no content type, in Connect.
        found, is_map = (
            json.loads(answer.content),
            answer.is_success and step.path.endswith(("/config", "/tasks-config")),
        )
        parts.append(shape(found, "config" if is_map and step.method == "GET" else ""))
    text = " ".join(parts)
    for name, long in NAMED.items():
        text = text.replace(long, name)
    return text


def reaches(target: Target, state: str) -> None:
    last: Any = None

    def reached() -> bool:
        nonlocal last
        last = httpx2.get(f"{target.url}{ONE}/status", timeout=30).json()
        found, tasks = last.get("connector", {}).get("state"), [task["state"] for task in last.get("tasks", [])]
        # The task of Connect's file source may stay RUNNING while its connector is paused.
        return found == state and (state == "PAUSED" or tasks == ([] if state == "STOPPED" else [state]))

    try:
        wait_until(reached, 120)
    except StackError:
        pytest.fail(f"not {state}: {last}")


def differences(connect: Target, tailrace: Target) -> Iterator[tuple[str, str, str]]:
    for step in STEPS:
        if step.wait:
            reaches(connect, step.wait)
            reaches(tailrace, step.wait)
            continue
        theirs, ours = (described(target.send(step), step) for target in (connect, tailrace))
        if theirs != ours:
            yield step.label, theirs, ours


def documented() -> list[tuple[str, str, str]]:
    """The rows of the table in the documentation, without the reasons."""
    table = DOCS.read_text().partition("<!-- differences -->")[2].partition("<!-- end -->")[0]
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in table.splitlines() if line.startswith("| `")]
    return [(row[0].strip("`"), row[1].strip("`"), row[2].strip("`")) for row in rows]


@pytest.mark.slow
def test_answers_differ_only_where_the_documentation_says_so(
    connect: ConnectWorker, shop: Shop, kafka: KafkaBroker, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one line\n")
    file_config = {"connector.class": FILE_SOURCE, "tasks.max": "1", "file": str(lines), "topic": f"{shop.name}-lines"}
    file_offset = {"offsets": [{"partition": {"filename": str(lines)}, "offset": {"position": 0}}]}
    own = config_of(shop)
    # The slot of a connector that is called `cmp` on both workers.
    own |= {"source.slot": f"tailrace_{shop.name}", "source.publication": f"tailrace_{shop.name}"}
    own |= {"kafka.offsets_topic": f"{shop.name}-offsets"}
    offset = {"offsets": [{"partition": {"server": "cmp"}, "offset": {"position": "0s"}}]}
    with ConnectRuntime(kafka, tmp_path / "connect") as runtime:
        theirs = Target(runtime.url, file_config, FILE_SOURCE, file_offset)
        ours = Target(connect.process.url, own, "tailrace.PostgresOutbox", offset)
        found = list(differences(theirs, ours))
    rows = "\n".join(f"| `{label}` | `{connect_}` | `{tailrace}` | |" for label, connect_, tailrace in found)
    assert found == documented(), f"The table of docs/connect_api.md should have these rows:\n{rows}"
