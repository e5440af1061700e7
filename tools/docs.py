"""Writes the generated pages of docs/: `make docs`."""

from __future__ import annotations

from pathlib import Path

from tools import (
    benchmarks_page,
    cli_page,
    configuration_page,
    doctor_page,
    errors_page,
    faults_page,
    metrics_page,
    race_page,
    soak_picture,
)

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[str, str]:
    """Every generated file by its path from docs/."""
    return {
        "benchmarks.md": benchmarks_page.page(),
        "speed.svg": benchmarks_page.picture(),
        "cli.md": cli_page.page(),
        "configuration.md": configuration_page.page(),
        "doctor.md": doctor_page.page(),
        "errors.md": errors_page.page(),
        "faults.md": faults_page.page(),
        "metrics.md": metrics_page.page(),
        **({"soak.svg": picture} if (picture := soak_picture.picture()) else {}),
        **race_page.files(),
    }


def write() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
