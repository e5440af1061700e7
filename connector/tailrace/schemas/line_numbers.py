"""Line numbers of the members of a JSON or YAML text, for messages about schema files."""

from __future__ import annotations

from collections.abc import Iterable

import yaml


def line_of(text: bytes, path: Iterable[str | int]) -> int | None:
    """Returns the line, counted from 1, of the member that `path` leads to; None if it is unknown.

    The YAML parser reads JSON as well and keeps the line of every node. A text that YAML reads differently (with tabs,
    for example) has no line numbers.
    """
    try:
        node = yaml.compose(text.decode(), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return None
    if node is None:
        return None
    line = int(node.start_mark.line)
    for step in path:
        found = _member(node, step)
        if found is None:
            break
        line, node = found
    return line + 1


def _member(node: yaml.Node, step: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(step):
                return key.start_mark.line, value
    if isinstance(node, yaml.SequenceNode) and str(step).isdigit() and int(step) < len(node.value):
        item = node.value[int(step)]
        return item.start_mark.line, item
    return None
