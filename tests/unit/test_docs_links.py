"""Links, files and modules that the pages name exist, and their lines are no longer than 120 characters."""

from __future__ import annotations

import importlib
import re
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FOLDERS = ("connector", "tests", "tools", "benchmarks", "examples")
SOURCES = [file for folder in FOLDERS for file in ROOT.glob(f"{folder}/**/*.py")]
WIDTH = 120

_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(r"`([\w./-]+\.py)`")
_MODULE = re.compile(r"`(tailrace(?:\.\w+)+)`")


def prose(page: str) -> str:
    return _CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_links(page: str) -> list[str]:
    found = []
    for link in _LINK.findall(prose(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


def is_known(name: str) -> bool:
    """Whether a dotted name is a module, a member of one, or a literal of the code, such as a header's name."""
    module, _, member = name.rpartition(".")
    for path, attribute in ((name, ""), (module, member)):
        with suppress(ModuleNotFoundError):
            if hasattr(importlib.import_module(path), attribute or "__name__"):
                return True
    return any(f'"{name}' in file.read_text(encoding="utf-8") for file in SOURCES)


@pytest.mark.parametrize("page", NAMES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert missing_links(page) == []


@pytest.mark.parametrize("page", NAMES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    paths = [f"/{file.relative_to(ROOT)}" for file in SOURCES]
    named = _FILE.findall(prose(page))
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in paths)] == []


@pytest.mark.parametrize("page", NAMES)
def test_every_module_that_a_page_names_exists(page: str) -> None:
    assert [name for name in _MODULE.findall(prose(page)) if not is_known(name)] == []


@pytest.mark.parametrize("page", NAMES)
def test_lines_are_wrapped(page: str) -> None:
    """Rows of tables and single long words cannot be wrapped."""
    lines = [line for line in prose(page).splitlines() if len(line) > WIDTH and not line.startswith(("|", "<!--"))]
    assert [line for line in lines if " " in line.strip()[2:]] == [], "run `make format`"


def test_the_architecture_page_names_every_package() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    modules = [path for path in (ROOT / "connector/tailrace").iterdir() if path.suffix == ".py" or path.is_dir()]
    names = {path.stem for path in modules if not path.name.startswith("__")}
    assert {name for name in names if f"`{name}`" not in page} == set()
