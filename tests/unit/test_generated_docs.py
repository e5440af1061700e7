"""The generated pages of docs/ are up to date and complete."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tailrace.config.load import load_pipeline
from tools import configuration_page, docs, errors_page


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return docs.pages()


@pytest.mark.parametrize(
    "name",
    [
        "../README.md",
        "benchmarks.md",
        "cli.md",
        "configuration.md",
        "doctor.md",
        "errors.md",
        "metrics.md",
        "speed.svg",
    ],
)
def test_a_generated_page_is_up_to_date(name: str, pages: dict[str, str]) -> None:
    assert (docs.DOCS / name).read_text(encoding="utf-8") == pages[name], "run `make docs`"


def test_every_setting_says_what_it_means() -> None:
    assert [setting.path for setting in configuration_page.settings() if not setting.meaning] == []


def test_every_error_says_what_it_means() -> None:
    found = {each.__name__ for _, each in errors_page.classes()}
    assert found <= set(errors_page.meanings())


def test_the_complete_example_is_valid_and_names_every_setting(tmp_path: Path, pages: dict[str, str]) -> None:
    example = pages["configuration.md"].partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "schemas").mkdir()
    (tmp_path / "topics").mkdir()
    (tmp_path / "rules").mkdir()
    (tmp_path / "orders.yaml").write_text(example)
    (tmp_path / "idp-ca.pem").touch()
    variables = ("DB_PASSWORD", "REGISTRY_LOGIN", "HOOK_TOKEN", "CLIENT_SECRET")
    load_pipeline(tmp_path / "orders.yaml", dict.fromkeys(variables, "a:value"))
    for setting in configuration_page.settings():
        if setting.section or setting.path.startswith(configuration_page.LEFT_OUT):
            continue
        section = yaml.safe_load(example)
        for name in setting.path.split("."):
            assert name in section, setting.path
            section = section[name]
