"""Build hooks: leaves the modules of `tailrace-outbox` to that distribution, and adds `schemas/` and `topics/`, which
`tailrace demo` reads."""

from __future__ import annotations

import shutil
from fnmatch import fnmatchcase
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("schemas", "topics")
OUTBOX_MODULES = Path("distributions", "outbox", "modules.txt").read_text().split()


class BuildConnector(build_py):
    """Builds the package into an empty folder. An editable install reads the folders of the repository instead."""

    def run(self) -> None:
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


setup(cmdclass={"build_py": BuildConnector})
