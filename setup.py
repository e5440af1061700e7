"""Build hook: puts a copy of `schemas/` and `topics/` into the wheel, where `tailrace demo` reads them."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("schemas", "topics")


class BuildWithDemoFiles(build_py):
    """Builds the package; an editable install reads the folders of the repository instead of a copy."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for name in FOLDERS:
                target = Path(self.build_lib, "tailrace", "testkit", "demo", name)
                shutil.copytree(Path(__file__).parent / name, target, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithDemoFiles})
