"""References are resolved, or the error says what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.config.references import MAX_BYTES, UnresolvedError, has_reference, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "whole").write_text("  from a file\n")
    (tmp_path / "keys").write_text("# user=comment\nuser = svc\npassword=a=b\nempty=\npassword=a=c\n")
    (tmp_path / "with:colon").write_text("colon")
    (tmp_path / "blank").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("${env:NAME}", "value"),
        ("a ${env:NAME} b ${env:NAME}", "a value b value"),
        ("$${env:NAME}", "${env:NAME}"),
        ("$${x}${env:NAME}", "${x}value"),
        ("$NAME {NAME} $", "$NAME {NAME} $"),
        ("${env:NESTED}", "${env:NAME}"),
        ("${file:whole}", "from a file"),
        ("${file:keys:user}", "svc"),
        ("${file:keys:password}", "a=c"),
        ("${file:./with:colon}", None),
    ],
)
def test_resolves(folder: Path, text: str, value: str | None) -> None:
    environ = {"NAME": "value", "NESTED": "${env:NAME}"}
    if value is None:
        with pytest.raises(UnresolvedError, match="cannot be read"):
            resolve(text, environ, folder)
    else:
        assert resolve(text, environ, folder) == value


def test_resolves_absolute_paths(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert resolve(f"${{file:{folder}/whole}}", {}, tmp_path_factory.mktemp("other")) == "from a file"
    assert resolve(f"${{file:{folder}/keys:user}}", {}, Path()) == "svc"


def test_resolves_files_of_a_folder_as_connect_does(folder: Path) -> None:
    assert resolve(f"${{dir:{folder}:whole}} ${{dir:.:whole}}", {}, folder) == "from a file from a file"


@pytest.mark.parametrize(
    ("text", "why", "remedy"),
    [
        ("${env:MISSING}", "MISSING is not set", "set MISSING"),
        ("${env:EMPTY}", "EMPTY is empty", "EMPTY"),
        ("${env:}", "not a known reference", "${env:NAME}"),
        ("${env:A-B}", "not a known reference", "${env:NAME}"),
        ("${NAME}", "not a known reference", "$${"),
        ("${vault:x}", "not a known reference", "$${"),
        ("${env:NAME", "not closed", "${env:NAME}"),
        ("${file:}", "not a known reference", "${file:/path}"),
        ("${file:absent}", "absent cannot be read", "create absent"),
        ("${file:.}", "cannot be read", "correct the path"),
        ("${file:/dev/zero}", "not a regular file", "correct the path"),
        ("${file:a\0b}", "cannot be read", "correct the path"),
        ("${file:large}", "larger than", "correct the path"),
        ("${file:pipe}", "not a regular file", "correct the path"),
        ("${dir:absent:whole}", "absent/whole cannot be read", "create absent/whole"),
        ("${dir:whole}", "not a known reference", "${dir:/path:file}"),
        ("${dir:.:a/b}", "not a known reference", "${dir:/path:file}"),
        ("${file:blank}", "empty value", "blank"),
        ("${file:binary}", "not text", "binary"),
        ("${file:keys:absent}", "no line absent=", "absent="),
        ("${file:keys:empty}", "empty value", "keys"),
    ],
)
def test_says_what_is_missing(folder: Path, text: str, why: str, remedy: str) -> None:
    (folder / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    os.mkfifo(folder / "pipe")
    with pytest.raises(UnresolvedError) as caught:
        resolve(text, {"NAME": "s3cret-value", "EMPTY": ""}, folder)
    assert why in caught.value.why
    assert remedy in caught.value.remedy
    assert "s3cret-value" not in str(caught.value)


def test_knows_references_and_escapes() -> None:
    assert has_reference("a ${env:X}")
    assert has_reference("$${")
    assert not has_reference("outbox.event.{aggregate} $X")
