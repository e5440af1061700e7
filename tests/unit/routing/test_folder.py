"""The folder of topic specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.routing.folder import load_topics


def test_files_are_rules_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "20-b.yaml").write_text("topic: b\n")
    (tmp_path / "10-a.yml").write_text("topic: a\nmatch: {type: 'A*'}\n")
    (tmp_path / ".hidden").write_text("!")
    specs = load_topics(tmp_path)
    assert [spec.topic for spec in specs] == ["a", "b"]
    assert specs[0].types == ("A*",)


def test_one_topic_in_two_files_must_be_one_topic(tmp_path: Path) -> None:
    (tmp_path / "1.yaml").write_text("topic: a\npartitions: 3\nmatch: {type: A}\n")
    (tmp_path / "2.yaml").write_text("topic: a\npartitions: 3\nmatch: {type: B}\n")
    assert len(load_topics(tmp_path)) == 2
    (tmp_path / "3.yaml").write_text("topic: a\npartitions: 4\nmatch: {type: C}\n")
    with pytest.raises(ConfigError, match=r"1\.yaml and .*3\.yaml declare the topic a differently"):
        load_topics(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"topic: [a\n", r"a\.yaml:2:1 is not YAML"),
        (b"topic: \xff\n", "is not YAML in UTF-8"),
        (b"!!python/object/apply:os.getcwd []", "is not YAML"),
        (b"", "must be a mapping"),
        (b"topic: a\n---\ntopic: b\n", "is not YAML"),
        (b"[" * 10_000, "is not YAML"),
    ],
)
def test_files_that_are_no_specs(tmp_path: Path, text: bytes, says: str) -> None:
    (tmp_path / "a.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=says):
        load_topics(tmp_path)


def test_other_files_and_missing_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_topics(tmp_path / "absent")
    (tmp_path / "orders.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"orders\.json is not a topic spec"):
        load_topics(tmp_path)
