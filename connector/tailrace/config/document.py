"""The file of a pipeline: what its errors say when it is absent, empty or something else."""

from __future__ import annotations

from pathlib import Path

from tailrace import yaml_document
from tailrace.yaml_document import ExpectedContent, KeyPath, YamlDocument

__all__ = ["KeyPath", "YamlDocument", "read_document"]

PIPELINE = ExpectedContent(
    name="a pipeline",
    setting="pipeline: orders",
    if_absent="Name the pipeline's file, or write a first one with `tailrace init`.",
    if_empty="Write a pipeline into it; `tailrace init` makes a first one.",
    if_other="Start from the file that `tailrace init` writes.",
)


def read_document(path: Path) -> YamlDocument:
    """Reads one YAML mapping; ConfigError, with line and column, for anything else."""
    return yaml_document.read_document(path, PIPELINE)
