"""The result of translating foreign configuration keys into settings: settings, problems, notes, origins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """A key that is wrong: what is wrong with it, and what to do."""

    key: str
    what: str
    remedy: str

    @property
    def remedy_sentence(self) -> str:
        ended = self.remedy if self.remedy.endswith(("?", ".")) else f"{self.remedy}."
        return ended[:1].upper() + ended[1:]

    @property
    def text(self) -> str:
        """The problem as one line, for Connect's lists of errors."""
        return f"{self.key} {self.what}. {self.remedy_sentence}"


@dataclass(slots=True)
class Translation:
    """What became of a configuration.

    `tree` are nested settings. `notes` say for each key that was ignored why. `origins` maps a setting to the foreign
    key it came from, so that problems can name the key that a user wrote.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    problems: list[KeyProblem] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def refuse(self, key: str, what: str, remedy: str) -> None:
        self.problems.append(KeyProblem(key, what, remedy))

    def note(self, key: str, why: str) -> None:
        self.notes[key] = why

    def put(self, settings: dict[str, str], setting: str, text: str, origin: str) -> None:
        """Sets a setting, unless the configuration has it under its own name."""
        if setting not in settings:
            settings[setting] = text
            self.origins[setting] = origin
