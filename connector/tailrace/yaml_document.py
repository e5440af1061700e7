"""Reads a YAML file as plain data, with the line number of each setting.

It is stricter than YAML: a repeated key is an error (YAML would silently keep the last one), and so are circular
aliases. Size and number of values are limited, because eight lines of nested aliases can expand to gigabytes. Error
texts have line and column but never quote the file, which may contain a password.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tailrace.errors import ConfigError

KeyPath = tuple[str, ...]
"""The path of a setting, such as `("kafka", "bootstrap")`."""

MAX_BYTES = 1 << 20
"""The maximum size of a file; usual ones have a few kilobytes."""
MAX_VALUES = 50_000
"""The maximum of keys, values and list items in one document, with aliases expanded."""


class ExpectedContent(NamedTuple):
    """Describes the expected content of a file, for error texts."""

    name: str
    """Such as `a pipeline`."""
    setting: str
    """A setting of every such file, such as `pipeline: orders`."""
    if_absent: str
    if_empty: str
    if_other: str
    """Remedies."""


@dataclass(frozen=True)
class YamlDocument:
    """The data, and the line numbers (from 1) by key path."""

    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)


def read_document(path: Path, wanted: ExpectedContent) -> YamlDocument:
    """Reads one YAML mapping; raises ConfigError, with line and column, for anything else."""
    text = _text(path, wanted)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{path} is empty", remedy=wanted.if_empty)
        require_bounded(node, str(path))
        lines: dict[KeyPath, int] = {}
        _walk(node, (), lines, path, ())
        data = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(path, error, wanted) from None
    except (yaml.YAMLError, ValueError):  # ValueError: 2024-13-45 looks like a date
        raise ConfigError(
            f"{path} contains something that YAML does not allow",
            remedy="Remove control characters, and put values that look like dates in quotes.",
        ) from None
    except RecursionError:
        raise ConfigError(
            f"{path} is nested too deeply", remedy="Reduce the nesting: settings are a few levels deep."
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path} is not {wanted.name}",
            why=f"The file contains a single value or a list; expected settings such as `{wanted.setting}`.",
            remedy=wanted.if_other,
        )
    return YamlDocument(data, lines)


def read_value(text: str, name: str) -> object:
    """Parses a single YAML value; raises YAMLError, ValueError or ConfigError."""
    loader = yaml.SafeLoader(text)
    node = loader.get_single_node()
    if node is None:
        return None
    require_bounded(node, name)
    return loader.construct_document(node)


def require_bounded(node: yaml.Node, name: str) -> None:
    """Raises ConfigError if the document is too large with its aliases expanded; takes time linear in its text."""
    sizes: dict[int, int] = {}

    def size(of: yaml.Node) -> int:
        if id(of) not in sizes:
            sizes[id(of)] = 1  # a cycle counts once here: `_walk` reports it
            children = (
                [part for pair in of.value for part in pair]
                if isinstance(of, yaml.MappingNode)
                else of.value
                if isinstance(of, yaml.SequenceNode)
                else []
            )
            sizes[id(of)] = 1 + sum(map(size, children))
        return sizes[id(of)]

    if size(node) > MAX_VALUES:
        raise ConfigError(
            f"{name} contains more than {MAX_VALUES:,} values",
            why="Aliases (*name) count with all values that they expand to.",
            remedy="Remove the aliases that contain other aliases, or split the file.",
        )


def _text(path: Path, wanted: ExpectedContent) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(
                f"{path} is larger than {MAX_BYTES:,} bytes",
                why="Settings take a few kilobytes, so this is probably another file.",
                remedy=wanted.if_other,
            )
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist", remedy=wanted.if_absent) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8", remedy="Store the file as UTF-8.") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror or type(error).__name__})",
            remedy="Make it readable for the user that runs Tailrace, or name another file.",
        ) from None


def _walk(node: yaml.Node, place: KeyPath, lines: dict[KeyPath, int], path: Path, above: tuple[yaml.Node, ...]) -> None:
    """Records the line of every key; raises for repeated keys and cycles."""
    if any(node is other for other in above):
        raise ConfigError(
            f"{path}:{node.start_mark.line + 1}: {'.'.join(place)} contains itself",
            remedy="Remove the alias (*name), or let it point elsewhere.",
        )
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[*place, str(index)] = item.start_mark.line + 1
            _walk(item, (*place, str(index)), lines, path, above)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value) if isinstance(key, yaml.ScalarNode) else "?", key.start_mark.line + 1
            if name in seen:
                raise ConfigError(
                    f"{path}:{line}: {'.'.join((*place, name))} is given twice",
                    why=f"It is already on line {seen[name]}; only one of the two can count.",
                    remedy="Remove one of the two lines.",
                )
            seen[name] = line
            lines[*place, name] = line
            _walk(value, (*place, name), lines, path, above)


def _syntax_error(path: Path, error: yaml.MarkedYAMLError, wanted: ExpectedContent) -> ConfigError:
    problem, remedy = (
        error.problem or "",
        "Correct the line; a YAML checker in your editor shows the error.",
    )
    # PyYAML quotes the text at the error, which may be a password.
    if "alias" in problem or "anchor" in problem:
        problem, remedy = "an alias that is not defined", "Put values that begin with * or & in quotes."
    elif "tag" in problem:
        problem, remedy = "a tag that is not known here", "Put values that begin with ! in quotes."
    elif "single document" in (error.context or ""):
        problem, remedy = "a second document (---)", f"Keep {wanted.name.replace('a ', 'one ', 1)} per file."
    elif "tab" in problem or "'\\t'" in problem:
        problem, remedy = "a tab where YAML wants spaces", "Indent with spaces."
    elif "character" in problem:
        problem, remedy = (
            "a character that is not allowed there",
            "Put values with special characters in quotes.",
        )
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
    place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return ConfigError(f"{where}: this is not valid YAML", why=f"Found {problem}{place}.", remedy=remedy)
