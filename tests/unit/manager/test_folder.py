"""Pipelines in a folder of YAML files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.errors import ConfigError, PipelineExists
from tailrace.manager.folder import PipelineFolder, read_pipeline


def pipeline(name: str, more: str = "") -> str:
    return (
        f"pipeline: {name}\n"
        "source: {postgres: 'postgresql://u:secret-word@localhost/shop', table: public.outbox}\n"
        f"kafka: {{bootstrap: 'localhost:9092'}}\n{more}"
    )


def write(file: Path, text: str) -> None:
    """Writes a file so that its change is visible, however coarse the clock of the file system is."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text)
    os.utime(file, ns=(before + 10**9, before + 10**9))


def test_finds_pipelines_and_reports_other_files(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", pipeline("a"))
    write(tmp_path / "b.yml", pipeline("b"))
    write(tmp_path / "other.yaml", "topic: orders\n")
    write(tmp_path / "broken.yaml", "pipeline: [")
    write(tmp_path / "empty.yaml", "")
    write(tmp_path / "list.yaml", "- 1\n")
    write(tmp_path / "nameless.yaml", "pipeline: Not A Name\n")
    write(tmp_path / "binary.yaml", "\x00")
    write(tmp_path / ".hidden.yaml", pipeline("hidden"))
    write(tmp_path / "notes.txt", pipeline("notes"))
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nothing")
    scan = PipelineFolder(tmp_path).scan({})
    assert {name: found.file.name for name, found in scan.pipelines.items()} == {"a": "a.yaml", "b": "b.yml"}
    assert [file.name for file in scan.ignored] == ["other.yaml"]
    assert {file.name for file in scan.problems} == {
        "binary.yaml", "broken.yaml", "empty.yaml", "folder.yaml", "gone.yaml", "list.yaml", "nameless.yaml",
    }  # fmt: skip
    assert all(error.remedy for error in scan.problems.values())


def test_an_invalid_pipeline_keeps_its_name_and_error(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", pipeline("a", "limits: {batch_records: -1}\n"))
    found = PipelineFolder(tmp_path).scan({}).pipelines["a"]
    assert found.settings is None
    assert "limits.batch_records" in str(found.error)
    assert "secret-word" not in str(found.error)


def test_of_two_files_with_one_name_the_owner_has_it(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        write(tmp_path / name, pipeline("orders"))
    folder = PipelineFolder(tmp_path)
    scan = folder.scan({})
    assert scan.pipelines["orders"].file.name == "a.yaml"
    error = scan.problems[tmp_path / "b.yaml"]
    assert isinstance(error, PipelineExists)
    assert "a.yaml" in str(error)
    scan = folder.scan({"orders": tmp_path / "b.yaml"})
    assert scan.pipelines["orders"].file.name == "b.yaml"
    assert list(scan.problems) == [tmp_path / "a.yaml"]


def test_files_are_read_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.yaml"
    write(file, pipeline("a"))
    reads: list[Path] = []

    def counting(path: Path) -> object:
        reads.append(path)
        return read_pipeline(path)

    monkeypatch.setattr("tailrace.manager.folder.read_pipeline", counting)
    folder = PipelineFolder(tmp_path)
    first = folder.scan({}).pipelines["a"]
    assert folder.scan({}).pipelines["a"] is first
    write(file, pipeline("a", "limits: {batch_records: 5}\n"))
    changed = folder.scan({}).pipelines["a"]
    assert changed.config["limits.batch_records"] == "5"
    assert len(reads) == 2
    file.unlink()
    assert folder.scan({}).pipelines == {}


def test_an_invalid_file_is_read_again_because_its_cause_may_be_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", pipeline("a", "schemas: {folder: schemas}\n"))
    folder = PipelineFolder(tmp_path)
    assert folder.scan({}).pipelines["a"].error is not None
    (tmp_path / "schemas").mkdir()
    assert folder.scan({}).pipelines["a"].error is None


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path / "file"):
        if path.name == "file":
            path.write_text("")
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            PipelineFolder(path).scan({})
        assert caught.value.remedy
