"""Log lines for people and for programs, and levels that change while a process runs."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.config import secrets
from tailrace.errors import ConfigError
from tailrace.worker import logs
from tailrace.worker.logs import StructuredLogger


class Stream(io.StringIO):
    """A stderr that is a terminal or not."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """Puts back what `configure` changes for the whole process."""
    root, names = logging.getLogger(), (*logs.LOGGERS, "pymongo.command", "org.apache.kafka")
    before = root.level, root.handlers[:], {name: logging.getLogger(name).level for name in names}
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    for name, level in before[2].items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.delenv(logs.FORMAT_VARIABLE, raising=False)
    stream = Stream()
    # Not sys.stderr itself: pytest replaces that after the fixtures.
    monkeypatch.setattr(logs, "sys", SimpleNamespace(stderr=stream))
    return stream


@pytest.mark.parametrize(
    ("flag", "variable", "terminal", "is_json"),
    [
        (None, "", True, False),
        (None, "", False, True),
        (None, "auto", False, True),
        (None, "text", False, False),
        (None, "json", True, True),
        (True, "text", True, True),
        (False, "json", False, False),
    ],
)
def test_the_format_is_chosen_by_flag_then_variable_then_terminal(
    monkeypatch: pytest.MonkeyPatch, flag: bool | None, variable: str, terminal: bool, is_json: bool
) -> None:
    stream = Stream(terminal=terminal)
    monkeypatch.setattr(logs, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setenv(logs.FORMAT_VARIABLE, variable)
    logs.configure(as_json=flag)
    StructuredLogger(pipeline="orders").info("running", position="0/19602D8")
    if is_json:
        (line,) = stream.objects
        assert (line["event"], line["pipeline"], line["logger"]) == ("running", "orders", "tailrace")
    else:
        assert stream.getvalue()[12:] == " info    running  pipeline=orders position=0/19602D8\n"


def test_an_unknown_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "xml")
    with pytest.raises(ConfigError, match="TAILRACE_LOG='xml'"):
        logs.configure()


def test_fields_of_the_process_are_on_every_line(stderr: Stream) -> None:
    logs.configure(pipeline="orders", pid=12)
    StructuredLogger().info("running")
    logging.getLogger("uvicorn").warning("something")
    assert [(line["pipeline"], line["pid"]) for line in stderr.objects] == [("orders", 12)] * 2


def test_an_error_of_a_person_s_line_has_a_line_for_cause_and_remedy(stderr: Stream) -> None:
    logs.configure(as_json=False)
    StructuredLogger(pipeline="orders").error("failed", error="SlotMissing", what="no slot", why="", remedy="Run it.")
    assert stderr.getvalue()[12:].splitlines() == [
        " error   failed  pipeline=orders error=SlotMissing",
        "  what:   no slot",
        "  remedy: Run it.",
    ]


@pytest.mark.parametrize("as_json", [True, False])
def test_secrets_are_masked_and_control_characters_escaped(stderr: Stream, as_json: bool) -> None:
    secrets.remember("hunter22")
    logs.configure(as_json=as_json)
    StructuredLogger().warning("waiting", what="password hunter22", type="a\x1b[2Jb\nc", other=OSError("hunter22"))
    assert "hunter22" not in stderr.getvalue()
    assert "***" in stderr.getvalue()
    assert "\x1b" not in stderr.getvalue()
    assert len(stderr.getvalue().splitlines()) == 1


def test_an_exception_is_named_without_its_text(stderr: Stream) -> None:
    logs.configure(as_json=True)
    try:
        raise ValueError("a payload")
    except ValueError:
        logging.getLogger("aiokafka").exception("it failed")
    (line,) = stderr.objects
    assert (line["event"], line["error"]) == ("it failed", "ValueError")
    assert "payload" not in stderr.getvalue()


def test_errors_of_opentelemetry_are_not_repeated_with_each_export(stderr: Stream) -> None:
    logs.configure(as_json=True)
    for _ in range(3):
        logging.getLogger("opentelemetry.sdk.trace.export").error("Exception while exporting Span batch.")
        logging.getLogger("aiokafka").error("again")
    assert [line["event"] for line in stderr.objects].count("again") == 3
    assert len(stderr.objects) == 4


def test_a_level_changes_for_a_logger_and_those_below_it(stderr: Stream) -> None:
    logs.configure(as_json=True)
    log = StructuredLogger("tailrace.kafka")
    log.debug("before")
    assert logs.levels()["tailrace.kafka"] == ("INFO", None)
    assert logs.set_level("tailrace.kafka", "debug") == ["tailrace.kafka"]
    log.debug("after")
    log.of("tailrace.source").debug("other")
    level, changed = logs.levels()["tailrace.kafka"]
    assert level == "DEBUG"
    assert changed is not None
    assert logs.levels()["tailrace"] == ("INFO", None)
    assert [line["event"] for line in stderr.objects] == ["after"]
    assert set(logs.set_level("tailrace", "WARN")) == {each for each in logs.LOGGERS if each != "librdkafka"}
    log.info("too low")
    assert logs.levels()["tailrace.kafka"][0] == "WARN"
    assert [line["event"] for line in stderr.objects] == ["after"]


def test_the_log_of_librdkafka_is_off_until_it_is_wanted(stderr: Stream) -> None:
    logs.configure(as_json=True)
    assert logs.levels()["librdkafka"] == ("OFF", None)
    logging.getLogger("librdkafka").critical("one")
    logs.set_level("librdkafka", "INFO")
    logging.getLogger("librdkafka").info("two")
    assert [line["event"] for line in stderr.objects] == ["two"]


def test_root_means_all_and_other_libraries_never_log_below_info(stderr: Stream) -> None:
    """PyMongo prints commands with their documents at DEBUG."""
    logs.configure(as_json=True)
    assert logs.levels()["root"] == ("WARN", None)
    changed = logs.set_level("root", "DEBUG")
    assert {"root", "tailrace.worker", "librdkafka"} <= set(changed)
    logs.set_level("pymongo.command", "TRACE")
    logging.getLogger("pymongo.command").debug("payload")
    logging.getLogger("aiokafka").debug("payload")
    StructuredLogger("tailrace.source").debug("ours")
    assert [line["event"] for line in stderr.objects] == ["ours"]
    assert logs.levels()["pymongo.command"][0] == "INFO"
    assert logs.levels()["root"][0] == "INFO"


def test_unknown_levels_and_names_are_refused(stderr: Stream) -> None:
    logs.configure(as_json=True)
    with pytest.raises(ConfigError, match="'LOUD' is not a log level"):
        logs.set_level("tailrace", "LOUD")
    for name in ("", "a b", "x" * 300, "../x"):
        with pytest.raises(ConfigError, match="not the name of a logger"):
            logs.set_level(name, "INFO")
    assert logs.set_level("org.apache.kafka", "ERROR") == ["org.apache.kafka"]
    assert logs.levels()["org.apache.kafka"][0] == "ERROR"
    for number in range(2 * logs.MAX_LOGGERS):
        try:
            logs.set_level(f"name{number}", "INFO")
        except ConfigError:
            break
    assert len(logs.levels()) <= logs.MAX_LOGGERS


def test_the_page_names_every_logger_and_level() -> None:
    page = (Path(__file__).parents[3] / "docs" / "logs.md").read_text()
    assert set(re.findall(r"^\| `([a-z.]+)` \| ", page.partition("## Levels")[2], re.MULTILINE)) == set(logs.LOGGERS)
    assert all(f"`{level}`" in page for level in logs.LEVELS)


def test_every_logger_of_the_code_is_listed() -> None:
    package = Path(logs.__file__).parents[1]
    found = {
        name
        for file in package.rglob("*.py")
        for name in re.findall(r'(?:getLogger|StructuredLogger|\.of)\("(tailrace[a-z_.]*)"', file.read_text())
    }
    assert found <= set(logs.LOGGERS), found - set(logs.LOGGERS)
    assert set(logs.LOGGERS) - found <= {"tailrace", "librdkafka"}
