"""Token providers of installed packages, named by their entry point in the group `tailrace.auth`.

A provider is a function that gets a `TokenRequest` and returns an `AccessToken`:

    [project.entry-points."tailrace.auth"]
    gcp = "tailrace_gcp:token"

Only the name of an entry point can be configured, never a module or a class: whoever may create a pipeline over REST
can choose among what is installed, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

from tailrace.auth.tokens import AccessToken
from tailrace.errors import ConfigError, TailraceError, TokenUnavailable

GROUP = "tailrace.auth"


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What the token is for. `service` is `kafka` or `postgres`; host, port and user are those of Postgres."""

    service: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    host: str = ""
    port: int = 0
    user: str = ""


@dataclass(frozen=True, slots=True)
class PluginToken:
    """Tokens of the provider `name`. `options` are its settings."""

    name: str
    service: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    host: str = ""
    port: int = 0
    user: str = ""

    def fetch(self) -> AccessToken:
        provide = load(self.name)
        request = TokenRequest(self.service, dict(self.options), self.host, self.port, self.user)
        try:
            token = provide(request)
        except TailraceError:
            raise
        except Exception as error:  # noqa: BLE001 - foreign code; its text may contain secrets
            raise TokenUnavailable(
                f"the token provider {self.name} fails with {type(error).__name__}",
                why="The error was raised by the installed package that provides the tokens.",
                remedy="See the documentation of that package. Tailrace retries by itself.",
            ) from None
        if not isinstance(token, AccessToken) or not token.value:
            raise ConfigError(
                f"the token provider {self.name} returned no token",
                why="It must return a non-empty tailrace.auth.tokens.AccessToken.",
                remedy="Correct or update the package that provides it.",
            )
        return token


def load(name: str) -> Callable[[TokenRequest], AccessToken]:
    """Returns the provider of this name; raises ConfigError if there is not exactly one."""
    found = {each.value: each for each in entry_points(group=GROUP, name=name)}
    known = ", ".join(sorted({each.name for each in entry_points(group=GROUP)})) or "none"
    if len(found) != 1:
        raise ConfigError(
            f"{'no installed package has' if not found else 'several installed packages have'} a token provider {name}",
            why=f"The entry points of the group {GROUP} are: {known}.",
            remedy="Correct the name, or install the package that provides it.",
        )
    [entry] = found.values()
    try:
        provide: Callable[[TokenRequest], AccessToken] = entry.load()
    except Exception as error:  # noqa: BLE001 - foreign code
        raise ConfigError(
            f"the token provider {name} cannot be loaded: {type(error).__name__}",
            why=f"Its entry point is {entry.value}.",
            remedy="Correct or update the package that provides it.",
        ) from None
    return provide
