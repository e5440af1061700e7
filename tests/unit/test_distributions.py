"""The two distributions of this repository: which modules services get, what those import, and what that costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from tailrace import __version__

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "connector"
PATTERNS = (ROOT / "distributions" / "outbox" / "modules.txt").read_text().split()
DEPENDENCIES = {"orjson", "jsonschema_rs"}
LEAVING = {
    "tailrace.schemas.folder": {"tailrace.schemas.avro.compiled", "tailrace.schemas.line_numbers"},
}
"""Imports inside functions of tailrace-outbox of modules that only the connector has. Each handles their absence."""

IMPORT_ALL = """
import importlib, sys

own, dependencies = sys.argv[1].split(), sys.argv[2].split()

class OnlyOwnModules:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if name not in own and top not in dependencies and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{name} is not part of tailrace-outbox", name=name)

sys.meta_path.insert(0, OnlyOwnModules)
for name in own:
    module = importlib.import_module(name)
    for exported in getattr(module, "__all__", ()):
        getattr(module, exported)
"""

IMPORT_AND_MEASURE = """
import json, sys, time
before = time.perf_counter()
for name in sys.argv[1:]:
    __import__(name)
print(json.dumps({"seconds": time.perf_counter() - before, "modules": sorted(sys.modules)}))
"""

PLUGIN = "tailrace.testkit.pytest"
"""The module that pytest imports, and that imports pytest."""
WRITER = [
    "tailrace.outbox",
    "tailrace.outbox.layouts",
    "tailrace.outbox.writer.outbox",
    "tailrace.schemas.folder",
    "tailrace.schemas.validation",
]
HEAVY = {
    *("confluent_kafka", "pydantic", "typer", "rich", "yaml", "fastavro", "msgspec", "asyncio", "tailrace.config"),
    *("psycopg", "pymongo", "sqlalchemy", "django", "asyncpg"),
}


def own_modules() -> dict[str, Path]:
    """Returns the modules of tailrace-outbox and their files."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if any(fnmatchcase(name, pattern) for pattern in PATTERNS):
            found[name] = file
    return found


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imports_of(file: Path) -> Iterator[str]:
    """Yields the modules of Tailrace that a file imports, inside functions as well, except for annotations only."""
    todo: list[ast.AST] = [ast.parse(file.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("tailrace."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tailrace":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (SOURCE / inner.replace(".", "/")).is_dir() or (
                    SOURCE / f"{inner.replace('.', '/')}.py"
                ).is_file()
                yield inner if is_module else str(node.module)
        todo.extend(ast.iter_child_nodes(node))


def test_every_listed_module_exists() -> None:
    assert {name for name in PATTERNS if not name.endswith("*")} <= own_modules().keys()


def test_the_small_distribution_is_complete() -> None:
    """Every module of tailrace-outbox can be imported with its dependencies alone."""
    run(IMPORT_ALL, " ".join(own_modules().keys() - {PLUGIN}), " ".join(DEPENDENCIES))


def test_imports_that_leave_the_small_distribution_are_known() -> None:
    own = own_modules()
    leaving = {name: set(imports_of(file)) - own.keys() for name, file in own.items()}
    assert {name: found for name, found in leaving.items() if found} == LEAVING, (
        "add the imported modules to distributions/outbox/modules.txt, or handle their absence and name them here"
    )


def test_the_connector_requires_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"tailrace-outbox=={__version__}" in project["dependencies"]


def test_the_dependencies_of_the_small_distribution_are_these() -> None:
    project = tomllib.loads((ROOT / "distributions" / "outbox" / "pyproject.toml").read_text())["project"]
    names = {requirement.partition(">")[0].replace("-", "_") for requirement in project["dependencies"]}
    assert names == DEPENDENCIES


def test_importing_the_writer_costs_no_more_than_importing_psycopg() -> None:
    """Measured in turns, and the fastest of several runs counts: other processes can only make a run slower."""
    rounds = [[json.loads(run(IMPORT_AND_MEASURE, *names)) for names in (WRITER, ["psycopg"])] for _ in range(4)]
    loaded = set(rounds[0][0]["modules"])
    assert set(WRITER) <= loaded
    assert loaded & HEAVY == set()
    writer, psycopg = (min(measured[side]["seconds"] for measured in rounds) for side in (0, 1))
    # On an idle machine it takes three quarters of the time.
    assert writer < 1.2 * psycopg, f"{writer:.3f} s, psycopg {psycopg:.3f} s"
