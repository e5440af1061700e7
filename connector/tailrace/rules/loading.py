"""Loads rules by name: `module:function`, or the name of an entry point of the group `tailrace.rules`.

Only what a setting names is imported.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from tailrace.errors import ConfigError
from tailrace.rules.rule import Rule

GROUP = "tailrace.rules"


def load(name: str) -> Rule:
    """Returns the function; raises ConfigError if there is none of this name."""
    module, _, function = (name if ":" in name else _target(name)).partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(name, error) from None
        raise ConfigError(
            f"the rule {name} cannot be loaded: there is no module {error.name}",
            why="It is neither installed nor in rules.folder.",
            remedy="Correct the name under rules.checks, install the package, or name its folder in rules.folder.",
        ) from None
    except BaseException as error:  # noqa: BLE001 - the module is foreign code
        raise _broken(name, error) from None
    for part in function.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise ConfigError(
                f"the rule {name} cannot be loaded: {module} has no {function}",
                why="A rule is named as module:function.",
                remedy="Correct the name under rules.checks, or define the function.",
            )
    if not callable(found):
        raise ConfigError(
            f"the rule {name} is not callable: {function} is of type {type(found).__name__}",
            why="A rule is a function that gets an event and returns None or a text.",
            remedy="Name a function under rules.checks.",
        )
    loaded: Rule = found
    return loaded


def name_of(rule: Rule) -> str:
    return f"{getattr(rule, '__module__', '?')}:{getattr(rule, '__qualname__', type(rule).__name__)}"


def _target(name: str) -> str:
    """Returns `module:function` of an entry point."""
    found = sorted({each.value for each in entry_points(group=GROUP, name=name)})
    if not found:
        known = ", ".join(sorted({each.name for each in entry_points(group=GROUP)})) or "none"
        raise ConfigError(
            f"the rule {name} cannot be loaded: no installed package has an entry point of this name",
            why=f"The entry points of the group {GROUP} are: {known}.",
            remedy="Correct the name, install the package, or write the rule as module:function.",
        )
    if len(found) > 1:
        raise ConfigError(
            f"the rule {name} is ambiguous: {' and '.join(found)}",
            why=f"Several packages have an entry point of this name in the group {GROUP}.",
            remedy="Write the rule as module:function.",
        )
    return found[0]


def _broken(name: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"the rule {name} cannot be loaded: importing its module raises {type(error).__name__}: {error}",
        why="The module itself, or something that it imports, fails.",
        remedy="Correct the module, or install what it imports.",
    )
