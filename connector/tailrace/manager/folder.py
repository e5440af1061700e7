"""The pipelines in a folder of YAML files.

A file with a `pipeline:` setting is a pipeline; others are reported and left alone. One bad file never affects the
others. Reading is blocking; the manager calls it in a thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.config.connector import file_config
from tailrace.config.load import PIPELINE_FILE, load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.errors import ConfigError, PipelineExists, TailraceError
from tailrace.yaml_document import read_document

ENDINGS = (".yaml", ".yml")
_is_name = re.compile(r"[a-z0-9_-]{1,48}").fullmatch

Signature = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class FoundPipeline:
    """A pipeline as its configuration describes it: `settings`, or the `error` that they have."""

    name: str
    file: Path
    config: dict[str, str]
    settings: PipelineSettings | None
    error: TailraceError | None = None


@dataclass(slots=True)
class FolderScan:
    """What a folder holds now. `problems` are files without a usable pipeline, `ignored` those without any."""

    pipelines: dict[str, FoundPipeline] = field(default_factory=dict)
    problems: dict[Path, TailraceError] = field(default_factory=dict)
    ignored: list[Path] = field(default_factory=list)


class PipelineFolder:
    """Reads a folder again and again; a file that has not changed is not read again."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._known: dict[Path, tuple[Signature, FoundPipeline | None]] = {}

    def scan(self, owners: Mapping[str, Path]) -> FolderScan:
        """Reads the folder. Of two files with one name, the one in `owners` has it, otherwise the first.

        Raises ConfigError if the folder cannot be read.
        """
        found = FolderScan()
        candidates: dict[str, list[FoundPipeline]] = {}
        files = self._files()
        for file, signature in files.items():
            try:
                pipeline = self._read(file, signature)
            except TailraceError as error:
                found.problems[file] = error
                self._known.pop(file, None)
                continue
            if pipeline is None:
                found.ignored.append(file)
            else:
                candidates.setdefault(pipeline.name, []).append(pipeline)
        for file in self._known.keys() - files.keys():
            del self._known[file]
        for name, pipelines in candidates.items():
            first = next((each for each in pipelines if each.file == owners.get(name)), pipelines[0])
            found.pipelines[name] = first
            for each in pipelines:
                if each is not first:
                    found.problems[each.file] = _twice(name, each.file, first.file)
        return found

    def _files(self) -> dict[Path, Signature]:
        files: dict[Path, Signature] = {}
        try:
            with os.scandir(self.path) as entries:
                for entry in sorted(entries, key=lambda each: each.name):
                    if entry.name.startswith(".") or not entry.name.endswith(ENDINGS):
                        continue
                    try:
                        stat = entry.stat()  # of the file that a link points to
                    except OSError:
                        stat = entry.stat(follow_symlinks=False)
                    files[Path(entry.path)] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except OSError as error:
            raise ConfigError(
                f"the folder {self.path} cannot be read ({error.strerror or type(error).__name__})",
                why="It does not exist, is not a folder, or this user may not read it.",
                remedy="Name a folder with the files of your pipelines, such as `tailrace worker pipelines`.",
            ) from None
        return files

    def _read(self, file: Path, signature: Signature) -> FoundPipeline | None:
        known = self._known.get(file)
        # What was wrong may be outside of the file: a folder, a variable, a referenced file.
        if known is not None and known[0] == signature and (known[1] is None or known[1].error is None):
            return known[1]
        found = read_pipeline(file)
        self._known[file] = (signature, found)
        return found


def read_pipeline(file: Path) -> FoundPipeline | None:
    """Reads and validates one file; None if it is no pipeline. Raises ConfigError if its name cannot be read."""
    data: dict[str, Any] = read_document(file, PIPELINE_FILE).data
    if "pipeline" not in data:
        return None
    try:
        settings = load_pipeline(file)
    except TailraceError as error:
        name = data["pipeline"]
        if not isinstance(name, str) or not _is_name(name):
            raise
        return FoundPipeline(name, file, file_config(data), None, error)
    return FoundPipeline(settings.pipeline, file, file_config(data), settings)


def _twice(name: str, file: Path, first: Path) -> PipelineExists:
    return PipelineExists(
        f"{file} has the pipeline {name}, which {first} has already",
        why="The name of a pipeline is its identity in Kafka: two of one name would fence each other.",
        remedy=f"Remove one of the two files, or give the pipeline in {file.name} another name.",
    )
