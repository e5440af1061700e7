"""`make compose-test` without Docker: it says that nothing was tested, and fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.deploy_files import COMPOSE, ROOT, compose
from tools import compose_test


def test_without_an_engine_it_says_so_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compose_test, "engine_answers", lambda: False)
    assert compose_test.main([]) == 2
    shown = capsys.readouterr().err
    assert "no engine answers" in shown
    assert "nothing was tested" in shown


def test_every_variable_gets_a_password_or_a_free_port(tmp_path: Path) -> None:
    project = compose_test.Compose(tmp_path)
    written = dict(line.split("=") for line in (tmp_path / "env").read_text().splitlines())
    assert written == project.values
    passwords = {value for name, value in written.items() if name.endswith("PASSWORD")}
    ports = {int(value) for name, value in written.items() if name.endswith("PORT")}
    assert len(passwords) == 5
    assert len(ports) == 8
    assert all(value.isalnum() for value in passwords)
    assert (tmp_path / "env").stat().st_mode & 0o077 == 0


def test_it_uses_the_compose_file_and_services_that_exist(tmp_path: Path) -> None:
    project = compose_test.Compose(tmp_path)
    assert str(COMPOSE) in project.command("up")
    text = (ROOT / "tools" / "compose_test.py").read_text(encoding="utf-8")
    services = compose()["services"]
    for name in ("worker", "projection"):
        assert f'Container(compose, "{name}")' in text
        assert name in services
