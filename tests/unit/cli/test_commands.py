"""`main`: output and exit code of every outcome; `--help` imports no command."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from typing import NoReturn

import pytest
import typer

import tailrace
from tailrace import cli
from tailrace.cli import commands
from tailrace.config.secrets import remember
from tailrace.errors import ConfigError, Fenced, SlotMissing, TailraceError

Sample = Callable[[Callable[[], object]], None]


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Sample:
    """Adds a command `sample` that does what the test wants."""

    def add(act: Callable[[], object]) -> None:
        def sample(as_json: bool = typer.Option(False, "--json")) -> object:
            """Sample."""
            return act()

        module = types.ModuleType("tailrace.cli.sample")
        module.sample = sample  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "tailrace.cli.sample", module)
        monkeypatch.setitem(commands.COMMANDS, "sample", ("tailrace.cli.sample", "Sample."))

    return add


def code_of(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return caught.value.code


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        raise error

    return act


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), ("text", 0)])
def test_the_return_value_of_a_command_is_the_exit_code(sample: Sample, returned: object, code: int) -> None:
    sample(lambda: returned)
    assert code_of("sample") == code


def test_a_command_may_raise_exit(sample: Sample) -> None:
    sample(raising(typer.Exit(1)))
    assert code_of("sample") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("x"), 2), (SlotMissing("x"), 3), (Fenced("x"), 4), (TailraceError("x"), 3)],
)
def test_errors_have_exit_codes(
    sample: Sample, capsys: pytest.CaptureFixture[str], error: TailraceError, code: int
) -> None:
    sample(raising(error))
    assert code_of("sample") == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"{error.code}: x\n"


def test_errors_are_printed_as_json_on_request(sample: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    remember("main-s3cret")
    sample(raising(SlotMissing("no main-s3cret", why="gone", remedy="fix")))
    assert code_of("sample", "--json") == 3
    output = json.loads(capsys.readouterr().err)
    assert output["error"] == "SlotMissing"
    assert (output["what"], output["why"], output["remedy"], output["exit_code"]) == ("no ***", "gone", "fix", 3)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupted_command_has_exit_code_130(
    sample: Sample, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    sample(raising(error))
    assert code_of("sample") == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_unexpected_exception_asks_for_a_report_and_masks_secrets(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    remember("bug-s3cret")
    sample(raising(RuntimeError("odd bug-s3cret")))
    assert code_of("sample") == 70
    output = capsys.readouterr().err
    assert "Traceback" in output
    assert "RuntimeError: odd ***" in output
    assert "Please report it" in output
    assert "bug-s3cret" not in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["inti"], "Did you mean `tailrace init`?"),
        (["zzz"], "There are: run, worker"),
        (["--nonsense"], "See `tailrace --help`"),
        (["sample", "--nonsense"], "See `tailrace sample --help`"),
    ],
)
def test_wrong_usage(sample: Sample, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    sample(lambda: None)
    assert code_of(*arguments) == 2
    assert expected in capsys.readouterr().err


def test_a_command_without_its_module_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(commands.COMMANDS, "absent", ("tailrace.cli.absent", "Absent."))
    assert code_of("absent") == 2
    assert "absent" in capsys.readouterr().err


def test_a_module_may_have_subcommands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    inner = typer.Typer(rich_markup_mode=None)
    inner.command("up")(lambda: commands.say("going up"))
    inner.command("down")(lambda: commands.say("going down"))
    module = types.ModuleType("tailrace.cli.lift")
    module.app = inner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tailrace.cli.lift", module)
    monkeypatch.setitem(commands.COMMANDS, "lift", ("tailrace.cli.lift", "Lift."))
    assert code_of("lift", "down") == 0
    assert capsys.readouterr().out == "going down\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("--version") == 0
    assert capsys.readouterr().out == f"tailrace {tailrace.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_help_lists_every_command_and_the_exit_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    # Secrets of other tests in this process may be words of the help.
    monkeypatch.setattr("tailrace.config.secrets._pattern", None)
    assert code_of(*arguments) == 0
    output = " ".join(capsys.readouterr().out.split())
    for name, (_, short_help) in commands.COMMANDS.items():
        assert f"{name} {short_help}" in output
    for code in (
        "0 done",
        "1 a check",
        "2 wrong usage",
        "3 the pipeline FAILED",
        "4 fenced",
        "70 a bug",
        "130",
    ):
        assert code in output


def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = """
import sys
from tailrace.cli import main
from tailrace.cli.commands import COMMANDS
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"rich", "yaml", "confluent_kafka", "psycopg", "jsonschema_rs"}
heavy |= {name for name, _ in COMMANDS.values()}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
