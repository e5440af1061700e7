"""On which line of a JSON file a place stands, for messages about schemas.

JSON is all but a part of YAML, and YAML's reader keeps the line of every node. Only asked once something is known to be
wrong; a text that YAML reads differently (tabs, say) just has no line.
"""

from __future__ import annotations

from collections.abc import Iterable

import yaml


def line_of(text: bytes, path: Iterable[str | int]) -> int | None:
    """The line, from 1, of the member that `path` leads to; None if it cannot be told."""
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
