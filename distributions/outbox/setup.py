"""Builds `tailrace-outbox` from the modules of `connector/tailrace` that `modules.txt` lists.

The sources stay in `connector/`, two levels up, where the connector has them as well. The sdist has a copy of its own
modules in `connector/`, beside this file.

With TAILRACE_COMPILE=1, the modules that run for each event are compiled with mypyc, which needs a C compiler. The
wheel contains their sources, too.
"""

from __future__ import annotations

import os
import re
import shutil
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

SOURCE = "connector" if Path("connector").is_dir() else "../../connector"
MODULES = Path("modules.txt").read_text().split()
MARKER = Path("tailrace", "py.typed")
COMPILED = ("outbox/layouts", "schemas/strict_json", "schemas/validation")
COMPILER = "mypy[mypyc]==2.4.1"
COMPILES = os.environ.get("TAILRACE_COMPILE") == "1"


def is_ours(package: str, module: str) -> bool:
    name = package if module == "__init__" else f"{package}.{module}"
    return any(fnmatchcase(name, pattern) for pattern in MODULES)


class BuildOwnModules(build_py):
    """Builds the listed modules only, into an empty folder: leftovers of an earlier build would be packed as well."""

    def run(self) -> None:
        if COMPILES and not self.distribution.ext_modules:
            raise SystemExit(f"TAILRACE_COMPILE=1 needs {COMPILER}")
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        return [found for found in super().find_package_modules(package, package_dir) if is_ours(package, found[1])]


class SdistWithSources(sdist):
    """Copies the modules into the sdist, where nothing is two levels up."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, [file for file in files if not file.startswith("..")])
        built: build_py = self.get_finalized_command("build_py")
        modules = [Path(found[2]) for found in built.find_all_modules()]
        for file in (*modules, Path(SOURCE, MARKER)):
            target = Path(base_dir, "connector", file.relative_to(SOURCE))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def compiled() -> list[Extension]:
    if not COMPILES or find_spec("mypyc") is None:  # which is not there yet when pip asks for `setup_requires`
        return []
    from mypyc.build import mypycify

    files = [f"{SOURCE}/tailrace/{module}.py" for module in COMPILED]
    return mypycify(["--ignore-missing-imports", *files], opt_level="3", group_name="tailrace_outbox")


setup(
    version=re.search(r'__version__ = "(.+)"', Path(SOURCE, "tailrace", "__init__.py").read_text())[1],
    package_dir={"": SOURCE},
    packages=[
        package
        for package in find_packages(SOURCE)
        if any(is_ours(package, file.stem) for file in Path(SOURCE, *package.split(".")).glob("*.py"))
    ],
    package_data={"tailrace": [MARKER.name]},
    cmdclass={"build_py": BuildOwnModules, "sdist": SdistWithSources},
    ext_modules=compiled(),
    setup_requires=[COMPILER] if COMPILES else [],
)
