"""Hides secrets in a connector's configuration, and puts them back when a client returns what it was shown.

A reference such as `${env:DB_PASSWORD}` is shown as it is. A literal secret is shown as `***`. A client that reads a
configuration, changes a part of it and writes it back leaves `***` where it was: then the stored value is kept, but
only if the address that it is sent to has not changed.
"""

from __future__ import annotations

import json
import re

from tailrace.config.flat import FlatConfig
from tailrace.config.secrets import MASK, REFERENCE, hide_passwords
from tailrace.config.translation import KeyProblem

_MAPS = (
    "kafka.settings", "schemas.registry.settings", "dead_letters.webhook.headers", "archive.options",
    "kafka.auth.options", "source.auth.options",
)  # fmt: skip
"""Maps that may hold secrets. Each may be given as one JSON object, too."""
_is_secret = re.compile(
    r"password|passphrase|secret|token|credential|user\.info|authorization|jaas\.config|oauthbearer\.config"
    r"|\.pem$|(ssl|tls)(\.\w+)*\.key$|^archive\.options\..*(key|sas)|^dead_letters\.webhook\.headers\.",
    re.IGNORECASE,
).search
_is_open = re.compile(r"\.(location|servers|source|type|\w*url|ms|mechanisms?)$", re.IGNORECASE).search
"""Names and addresses, which messages and forms need."""
_SENT_TOGETHER = (
    ("source.", "database.", "mongodb."),
    ("kafka.", "producer.override."),
    ("schemas.registry.", "key.converter.", "value.converter."),
    ("dead_letters.webhook.",),
    ("archive.",),
)
"""Prefixes of settings of one server, or of servers that exchange credentials: a token of one is sent to the other."""
_is_address = re.compile(
    r"(url|uri|host|hostname|hostaddr|port|servers|broker\.list|bootstrap|endpoint|proxy|provider|connection\.string"
    r"|^source\.(postgres|mongo))$",
    re.IGNORECASE,
).search
"""The settings that say where secrets are sent to."""


def masked(config: FlatConfig) -> dict[str, str | None]:
    """Returns a configuration that may be shown to anybody."""
    return {key: None if text is None else masked_value(key, text) for key, text in config.items()}


def masked_value(key: str, text: str) -> str:
    """Returns one value as it may be shown."""
    if key in _MAPS and text.strip() not in ("", "{}"):
        return _masked_map(key, text)
    if _is_secret(key) and not _is_open(key) and REFERENCE.sub("", text).strip():
        return MASK
    if key == "dead_letters.webhook.url" and REFERENCE.sub("", text).strip():
        return re.sub(r"^(https?://[^\s/?#@]+)[/?].*$", rf"\1/{MASK}", text, flags=re.DOTALL)
    return hide_passwords(text)


def _masked_map(key: str, text: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return MASK
    if not isinstance(found, dict):
        return MASK
    shown = {name: masked_value(f"{key}.{name}", v) if isinstance(v, str) else v for name, v in found.items()}
    return text if shown == found else json.dumps(shown)


def unmasked(config: FlatConfig, stored: FlatConfig) -> tuple[dict[str, str | None], list[KeyProblem]]:
    """Puts stored secrets back where a client returned the mask; refuses masks that stand for nothing stored."""
    shown = masked(stored)
    whole: dict[str, str | None] = {}
    problems = []
    for key, text in config.items():
        whole[key] = text
        if text is None or MASK not in text or text == stored.get(key):
            continue
        if shown.get(key) != text:
            problems.append(
                KeyProblem(key, f"contains {MASK}, which hides a secret", "write the secret, or better a reference")
            )
        elif moved := _moved(key, config, stored):
            problems.append(
                KeyProblem(key, f"is hidden, and {moved} has changed", f"write the secret again, to use it for {moved}")
            )
        else:
            whole[key] = stored[key]
    return whole, problems


def _moved(key: str, config: FlatConfig, stored: FlatConfig) -> str:
    """Returns the name of a changed address that a hidden secret would be sent to."""
    prefixes = next((each for each in _SENT_TOGETHER if key.startswith(each)), ())
    shown = masked(stored)
    for name in sorted(config.keys() | stored.keys()):
        is_sent = name != key and name.startswith(prefixes) and (name in _MAPS or _is_address(name))
        if is_sent and config.get(name) not in (stored.get(name), shown.get(name)):
            return name
    return ""
