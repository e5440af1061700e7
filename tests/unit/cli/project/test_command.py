"""`tailrace project`: loading the app, and errors if it cannot be loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tailrace.cli.project.command import load_app
from tailrace.errors import ConfigError

SOURCES = {
    "good.py": """
from tailrace.projections.faust.app import projection_app
app = projection_app("good")
class Apps:
    inner = projection_app("inner")
""",
    "plain.py": "import faust\napp = faust.App('plain')\n",
    "broken.py": "import json\nraise ValueError('no such thing')\n",
    "unfinished.py": "def app(:\n",
    "lacking.py": "import there_is_no_such_library\n",
    "refused.py": """
from tailrace.errors import ConfigError
raise ConfigError("said by the app itself")
""",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, source in SOURCES.items():
        (tmp_path / name).write_text(source)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "found"), [("good:app", "good"), ("good", "good"), ("good:", "good"), ("good:Apps.inner", "inner")]
)
def test_an_app_is_found_in_the_current_folder(name: str, found: str) -> None:
    assert load_app(name).conf.id == found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("good.py", "Give `good:app`"),
        ("./shop/good.py:main", "Give `shop.good:main`"),
        (":app", "is not the name of an app"),
        ("good app", "is not the name of an app"),
        ("nowhere:app", "there is no module 'nowhere'"),
        ("nowhere.at.all:app", "there is no module 'nowhere'"),
        ("good:other", "good has no 'other'"),
        ("plain:app", "plain:app is App, not an app for projections"),
        ("good:Apps", "good:Apps is type, not an app"),
        ("broken:app", "ValueError: no such thing"),
        ("broken:app", "broken.py, line 2."),
        ("unfinished:app", "SyntaxError"),
        ("unfinished:app", "unfinished.py, line 1."),
        ("lacking:app", "lacking imports there_is_no_such_library"),
        ("refused:app", "said by the app itself"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_reported(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_app(name)
    assert expected in str(caught.value)
