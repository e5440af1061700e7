"""Renders the manifests of deploy/kubernetes/ from the Helm chart: `make manifests`.

One file for each template, without what only Helm needs. `--check` compares them with the files and changes nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "tailrace"
MANIFESTS = ROOT / "deploy" / "kubernetes"
VALUES = MANIFESTS / "values.yaml"
RELEASE = "tailrace"
NOT_RENDERED = ("values.yaml", "kustomization.yaml")
HEAD = "# Rendered from deploy/helm by `make manifests`: change the chart or values.yaml, not this file.\n"
_SOURCE = re.compile(r"^# Source: tailrace/templates/(?P<file>\S+)\n", re.MULTILINE)
_HELM_LABELS = re.compile(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", re.MULTILINE)


def render(helm: Path, *arguments: str) -> str:
    """Returns what `helm template` prints for the chart."""
    command = [str(helm), "template", RELEASE, str(CHART), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"helm template failed:\n{done.stderr}")
    return done.stdout


def shop_files() -> list[str]:
    """Returns the options that add schemas/ and topics/ of the repository to the values."""
    files = {
        "schemas": {
            str(file.relative_to(ROOT / "schemas")): file.read_text(encoding="utf-8")
            for file in sorted((ROOT / "schemas").glob("Order*/*.json"))
        },
        "topics": {"orders.yaml": (ROOT / "topics" / "orders.yaml").read_text(encoding="utf-8")},
    }
    return [option for name, values in files.items() for option in ("--set-json", f"{name}={json.dumps(values)}")]


def manifests(helm: Path) -> dict[str, str]:
    """Returns the text of each manifest by its file name."""
    found: dict[str, list[str]] = {}
    for document in render(helm, "--values", str(VALUES), *shop_files()).split("---\n"):
        source = _SOURCE.search(document)
        if source is not None:
            text = _HELM_LABELS.sub("", _SOURCE.sub("", document)).rstrip() + "\n"
            found.setdefault(source["file"], []).append(text)
    return {file: HEAD + "---\n".join(texts) for file, texts in sorted(found.items())}


def outdated(helm: Path) -> list[str]:
    """Returns the files that differ from the chart, are missing, or do not belong here."""
    wanted = manifests(helm)
    present = {file.name: file.read_text(encoding="utf-8") for file in MANIFESTS.glob("*.yaml")}
    names = (wanted.keys() | present.keys()) - set(NOT_RENDERED)
    return sorted(name for name in names if wanted.get(name) != present.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description="Render deploy/kubernetes/ from the Helm chart.")
    parser.add_argument("helm", type=Path, help="the path of helm")
    parser.add_argument("--check", action="store_true", help="compare only; the exit code is 1 if a file differs")
    given = parser.parse_args()
    different = outdated(given.helm)
    if given.check:
        sys.stdout.write("".join(f"deploy/kubernetes/{name} is not what the chart renders\n" for name in different))
        return 1 if different else 0
    wanted = manifests(given.helm)
    for name in different:
        if name in wanted:
            (MANIFESTS / name).write_text(wanted[name], encoding="utf-8")
        else:
            (MANIFESTS / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
