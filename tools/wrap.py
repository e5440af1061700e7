"""Wraps paragraphs and list items of the pages that have a line of more than 120 characters: `make format`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
WIDTH = 120
_ITEM = re.compile(r"(\s*)(?:[-*]|\d+\.)\s+")
_FIXED = re.compile(r"\s*(?:#|\||<|!\[|```|$)")
_GLUED = "\0"


def wrapped(text: str) -> str:
    """The page with its long lines wrapped; code, tables, headings and comments stay as they are."""
    lines: list[str] = []
    block: list[str] = []
    in_code = False
    for line in [*text.splitlines(), ""]:
        is_fence = line.lstrip().startswith("```")
        if in_code or is_fence or _FIXED.match(line) or _ITEM.match(line):
            lines += _wrapped_block(block)
            block = []
        if in_code or is_fence or _FIXED.match(line):
            lines.append(line)
        else:
            block.append(line)
        in_code ^= is_fence
    return "\n".join(lines).rstrip("\n") + "\n"


def _wrapped_block(block: list[str]) -> list[str]:
    """A paragraph or list item, wrapped if one of its lines is too long."""
    if all(len(line) <= WIDTH for line in block):
        return block
    item = _ITEM.match(block[0])
    # A later paragraph of a list item is indented, and stays so.
    first = item[0] if item else block[0][: len(block[0]) - len(block[0].lstrip())]
    # A word that would begin a list or a heading at the start of a line stays with the word before it.
    words = " ".join(line.strip() for line in [block[0].removeprefix(first), *block[1:]])
    words = re.sub(r" (?=(?:[-*+>#]|\d+\.) )", _GLUED, words)
    made = textwrap.wrap(
        words,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUED, " ") for line in made]


def wrap_pages(pages: list[Path] = PAGES) -> None:
    for page in pages:
        page.write_text(wrapped(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    wrap_pages()
