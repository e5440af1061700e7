"""Translates the options of Debezium's outbox event router: columns of the outbox, and topics."""

from __future__ import annotations

import re

from tailrace.config.debezium_keys import ROUTER_HARMLESS, ROUTER_RENAMED
from tailrace.config.translation import Translation

ANY = r"(?<routedByValue>.*)"
ROUTED = "${routedByValue}"
_CHANGES = {"warn": "ignore", "error": "ignore", "fatal": "halt"}


def router_settings(router: str, keys: dict[str, str], own: dict[str, str], found: Translation) -> None:
    """Moves the router's options from `keys` to `own`; refuses other transformations."""
    names = [name.strip() for name in keys.pop("transforms", "").split(",") if name.strip()]
    routers = [name for name in names if keys.get(f"transforms.{name}.type") == router]
    for name in names:
        if name not in routers:
            found.refuse(
                f"transforms.{name}.type",
                "is a transformation that is not translated",
                f"remove {name} from `transforms`; a pipeline has the outbox event router alone ({router})",
            )
    if not routers:
        found.refuse(
            "transforms",
            "has no outbox event router: this worker publishes outboxes, not tables",
            f"set transforms=outbox and transforms.outbox.type={router}",
        )
    elif len(routers) > 1:
        found.refuse("transforms", f"has {len(routers)} outbox event routers", "leave one of them")
    for key in [key for key in keys if key.startswith(("transforms.", "predicates"))]:
        text = keys.pop(key)
        name, _, option = key.removeprefix("transforms.").partition(".")
        if name in routers and option != "type":
            _option(key, option.removeprefix("collection.").removeprefix("table."), text, own, found)
        elif key.startswith("predicates"):
            found.note(key, "every row of the outbox is an event")
    if routers:
        _topic(f"transforms.{routers[0]}", own, found)


def _option(key: str, option: str, text: str, own: dict[str, str], found: Translation) -> None:
    if option in ROUTER_RENAMED:
        if text:
            found.put(own, ROUTER_RENAMED[option], text, key)
    elif option == "route.topic.regex":
        if text != ANY:
            found.refuse(key, "is not translated", "write routing rules into a folder, and set topics.folder")
    elif option == "route.topic.replacement":
        _template(key, text, own, found)
    elif option == "fields.additional.placement":
        _placements(key, text, found)
    elif option == "op.invalid.behavior":
        if text.lower() not in _CHANGES:
            found.refuse(key, "is unknown", f"write one of {', '.join(_CHANGES)}")
        elif "source.mongo" not in own:
            found.put(own, "source.on_change", _CHANGES[text.lower()], key)
    elif option in ROUTER_HARMLESS or option.startswith("tracing."):
        found.note(key, ROUTER_HARMLESS.get(option, "the columns of a trace context are sent as headers"))
    else:
        found.refuse(key, "is not a known option of the event router", "remove it, or correct the name")


def _template(key: str, text: str, own: dict[str, str], found: Translation) -> None:
    rest = text.replace(ROUTED, "x").replace("$1", "x")
    if re.search(r"[${}]", rest):
        found.refuse(
            key, "refers to a group of another pattern", f"use {ROUTED}, or write routing rules and set topics.folder"
        )
    else:
        found.put(own, "topics.template", text.replace(ROUTED, "{aggregate}").replace("$1", "{aggregate}"), key)


def _topic(prefix: str, own: dict[str, str], found: Translation) -> None:
    """Routing by the type needs no second column: the template names it."""
    routed = own.get("outbox.columns.aggregate")
    if routed is not None and routed == own.get("outbox.columns.type", "type"):
        if found.origins.pop("outbox.columns.aggregate", None) is None:
            return
        del own["outbox.columns.aggregate"]
        template = own.get("topics.template", "outbox.event.{aggregate}")
        own["topics.template"] = template.replace("{aggregate}", "{type}")
        found.origins["topics.template"] = f"{prefix}.route.topic.replacement"


def _placements(key: str, text: str, found: Translation) -> None:
    """All further columns are headers under their own names, which is the only placement there is."""
    for part in filter(None, (part.strip() for part in text.split(","))):
        column, _, rest = part.partition(":")
        place, _, alias = rest.partition(":")
        if place != "header":
            found.refuse(
                key,
                f"places {column} in the {place or 'record'}",
                "place it in the header, or write it into the payload; the partition follows from the key",
            )
        elif alias and alias != column:
            found.refuse(
                key,
                f"renames {column} to the header {alias}",
                f"remove the alias, and let consumers read the header {column}; or rename the column",
            )
