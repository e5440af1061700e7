"""`tailrace schemas models`: writes, prints and checks generated models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tailrace.cli import main

ROOT = Path(__file__).parents[4]
ORDER = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["schemas", "models", *arguments])
    printed = capsys.readouterr()
    return caught.value.code, printed.out, printed.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "schemas"
    made.mkdir()
    (made / "Order.json").write_text(json.dumps(ORDER))
    # Of keys, not of an event.
    (made / "orders-key.json").write_text('{"type": "string"}')
    return made


def test_generated_models_are_up_to_date_until_a_schema_changes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "events.py"
    arguments = ("--folder", str(folder), "--output", str(file))
    assert run(capsys, *arguments, "--check")[0] == 1
    assert not file.exists()
    assert run(capsys, *arguments)[:2] == (0, f"wrote {file}\n")
    assert "class Order(BaseModel):\n    id: str\n" in file.read_text()
    assert "Key" not in file.read_text()
    assert run(capsys, *arguments, "--check")[:2] == (0, "")
    before = file.read_text()
    (folder / "Order.json").write_text(json.dumps({**ORDER, "required": []}))
    code, out, _ = run(capsys, *arguments, "--check")
    assert (code, "is out of date" in out) == (1, True)
    assert file.read_text() == before


def test_without_a_file_the_models_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--folder", str(folder))
    assert (code, "class Order(BaseModel):" in out) == (0, True)
    code, _, err = run(capsys, "--folder", str(folder), "--check")
    assert (code, "--output" in err) == (2, True)


def test_selected_types_are_generated_with_their_references(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "Sale.json").write_text('{"properties": {"order": {"$ref": "Order.json"}}}')
    (folder / "Other.json").write_text(json.dumps(ORDER))
    code, out, _ = run(capsys, "--folder", str(folder), "--type", "Sale")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("class ")] == [
        "class Order(BaseModel):",
        "class Sale(BaseModel):",
    ]
    code, _, err = run(capsys, "--folder", str(folder), "--type", "Sail")
    assert (code, "there is no schema for Sail" in err) == (2, True)


def test_the_models_of_the_example_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """Checked with the command of its README."""
    readme = (ROOT / "examples/order_summary/README.md").read_text()
    [command] = re.findall(r"^tailrace schemas models (.*?)\n```", readme, re.DOTALL | re.MULTILINE)
    arguments = [str(ROOT / each) if "/" in each else each for each in command.replace("\\\n", "").split()]
    assert run(capsys, *arguments, "--check")[:2] == (0, "")


def test_an_unusable_schema_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "Bad.json").write_text('{"type": 5}')
    code, out, err = run(capsys, "--folder", str(folder))
    assert (code, out) == (2, "")
    assert "Bad.json" in err


def test_a_file_that_cannot_be_written_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for output in (tmp_path / "none" / "events.py", folder):
        code, _, err = run(capsys, "--folder", str(folder), "--output", str(output))
        assert (code, f"{output} cannot be written" in err, "--output" in err) == (2, True, True)
