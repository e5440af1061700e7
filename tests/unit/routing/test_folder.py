"""The folder of topic specs, as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.routing.folder import load_topics
from tailrace.routing.view import View


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "20-b.yaml").write_text("topic: b\n")
    (tmp_path / "10-a.yml").write_text("topic: a\nmatch: {type: 'A*'}\n")
    (tmp_path / ".hidden").write_text("!")
    specs = load_topics(tmp_path)
    assert [spec.topic for spec in specs] == ["a", "b"]
    assert specs[0].rule is not None
    assert specs[1].rule is None


def test_two_files_about_one_topic_must_agree(tmp_path: Path) -> None:
    (tmp_path / "1.yaml").write_text("topic: a\npartitions: 3\nmatch: {type: A}\n")
    (tmp_path / "2.yaml").write_text("topic: a\npartitions: 3\nmatch: {type: B}\n")
    assert len(load_topics(tmp_path)) == 2
    (tmp_path / "3.yaml").write_text("# the same again\ntopic: a\npartitions: 4\nmatch: {type: C}\n")
    with pytest.raises(ConfigError, match=r"3\.yaml:2: .*1\.yaml:1 declares the topic a differently"):
        load_topics(tmp_path)


def test_errors_name_the_lines_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text("topic: a\n\nmatch:\n  type: [Order*]\n  agregate: order\n")
    with pytest.raises(ConfigError, match=r"orders\.yaml:5: match\.agregate is not a field") as caught:
        load_topics(tmp_path)
    assert caught.value.remedy == "Did you mean `aggregate`?"


def test_rules_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("topic: a\nmatch:\n  type: Order*\n")
    (tmp_path / "b.yaml").write_text("topic: b\nmatch:\n  type: '*Placed'\n")
    with pytest.raises(ConfigError, match=r"b\.yaml:2: .*a\.yaml:2 .*type 'OrderPlaced'"):
        load_topics(tmp_path)
    (tmp_path / "b.yaml").write_text("topic: b\npriority: 1\nmatch:\n  type: '*Placed'\n")
    assert len(load_topics(tmp_path)) == 2


def test_a_conflict_of_one_pipeline_is_reported_for_that_pipeline_only(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("topic: a\nmatch:\n  subject: user.>\n")
    (tmp_path / "b.yaml").write_text("topic: b\nmatch:\n  aggregate: order\n")
    assert len(load_topics(tmp_path)) == len(load_topics(tmp_path, View("orders"))) == 2
    with pytest.raises(ConfigError, match="can match the same event"):
        load_topics(tmp_path, View("orders", subject="subject"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"topic: [a\n", r"a\.yaml:2:1: this is not valid YAML"),
        (b"topic: \xff\n", "is not text in UTF-8"),
        (b"!!python/object/apply:os.getcwd []", "not valid YAML"),
        (b"", r"a\.yaml is empty"),
        (b"- a\n", r"a\.yaml is not a topic spec"),
        (b"topic: a\ntopic: b\n", r"a\.yaml:2: topic is given twice"),
        (b"topic: a\n---\ntopic: b\n", "not valid YAML"),
        (b"topic: a\nmatch: *\n", "not valid YAML"),
        (b"[" * 10_000, "nested too deeply"),
    ],
)
def test_files_that_are_not_specs(tmp_path: Path, text: bytes, says: str) -> None:
    (tmp_path / "a.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_topics(tmp_path)
    assert caught.value.remedy


def test_other_files_and_missing_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_topics(tmp_path / "absent")
    (tmp_path / "orders.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"orders\.json is not a topic spec"):
        load_topics(tmp_path)
