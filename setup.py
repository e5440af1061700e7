"""Build hooks: leaves the modules of `tailrace-outbox` to that distribution, and adds `schemas/` and `topics/`, which
`tailrace demo` reads.

With TAILRACE_COMPILE=1, the modules that run for each event are compiled with mypyc, which needs a C compiler. The
wheel contains their sources, too.
"""

from __future__ import annotations

import os
import shutil
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

FOLDERS = ("schemas", "topics")
COMPILED = (
    "pipeline/batch",
    "pipeline/processor",
    "records/plain",
    "routing/router",
    "sources/mongo/changes",
    "sources/mongo/decoding",
    "sources/mongo/documents",
    "sources/mongo/raw_batch",
    "sources/postgres/messages",
    "sources/postgres/pgoutput",
    "sources/postgres/replication_protocol",
    "sources/postgres/transactions",
)
COMPILER = "mypy[mypyc]==2.4.1"
COMPILES = os.environ.get("TAILRACE_COMPILE") == "1"
OUTBOX_MODULES = Path("distributions", "outbox", "modules.txt").read_text().split()


class BuildConnector(build_py):
    """Builds the package into an empty folder. An editable install reads the folders of the repository instead."""

    def run(self) -> None:
        if COMPILES and not self.distribution.ext_modules:
            raise SystemExit(f"TAILRACE_COMPILE=1 needs {COMPILER}")
        if self.editable_mode:
            super().run()
            return
        # Leftovers of an earlier build would be packed as well.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        for name in FOLDERS:
            shutil.copytree(name, Path(self.build_lib, "tailrace", "testkit", "demo", name), dirs_exist_ok=True)

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        names = {module: package if module == "__init__" else f"{package}.{module}" for _, module, _ in found}
        return [
            (package, module, file)
            for package, module, file in found
            if not any(fnmatchcase(names[module], pattern) for pattern in OUTBOX_MODULES)
        ]


def compiled() -> list[Extension]:
    if not COMPILES or find_spec("mypyc") is None:  # which is not there yet when pip asks for `setup_requires`
        return []
    from mypyc.build import mypycify

    files = [f"connector/tailrace/{module}.py" for module in COMPILED]
    return mypycify(["--ignore-missing-imports", *files], opt_level="3", group_name="tailrace")


setup(
    cmdclass={"build_py": BuildConnector},
    ext_modules=compiled(),
    setup_requires=[COMPILER] if COMPILES else [],
)
