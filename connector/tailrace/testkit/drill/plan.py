"""The scratch pipeline of a drill: the connection settings of the user's pipeline, and names of its own.

Only what reaches the servers is taken over: addresses, logins, TLS, delivery and limits. The outbox, its schemas and
its topic are the drill's own, so no event of the user is read and no consumer of the user sees an event of the drill.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.config.model import PipelineSettings
from tailrace.sql_names import split_table

SUFFIX = "-drill"
LONGEST_NAME = 48
ORDER = {
    "type": "object",
    "required": ["order", "revision", "amount", "currency"],
    "properties": {"revision": {"type": "integer"}, "amount": {"type": "number"}},
}
USER = {
    "type": "object",
    "required": ["user", "revision", "email"],
    "properties": {"revision": {"type": "integer"}, "email": {"type": "string"}},
}
SCHEMAS = {"OrderPlaced": ORDER, "OrderChanged": ORDER, "UserRegistered": USER, "UserChanged": USER}
"""Those of the workload's writers, whose invalid events break them."""


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """The names that a drill uses. They depend on the pipeline only, so that the next run finds what is left."""

    pipeline: str
    name: str
    database: str
    """Of MongoDB; empty for Postgres."""
    outbox: str
    """`schema.table`, or the name of the collection."""
    slot: str

    @property
    def is_mongo(self) -> bool:
        return bool(self.database)

    @property
    def events(self) -> str:
        return f"{self.name}.events"

    @property
    def dead_letters(self) -> str:
        return f"{self.name}.dead-letters"

    @property
    def offsets(self) -> str:
        return f"{self.name}.offsets"


def plan_drill(settings: PipelineSettings) -> DrillPlan:
    """Returns the names for a pipeline; all of them contain its name."""
    name = settings.pipeline[: LONGEST_NAME - len(SUFFIX)] + SUFFIX
    scratch = f"tailrace_{name.replace('-', '_')}"
    source = settings.source
    if source.mongo is not None:
        database = source.collection[0].partition(".")[0]
        return DrillPlan(settings.pipeline, name, database, scratch, "")
    schema = split_table(source.table)[0] if source.table else "public"
    return DrillPlan(settings.pipeline, name, "", f"{schema}.{scratch}", scratch)


def scratch_settings(data: Mapping[str, Any], plan: DrillPlan, folder: Path) -> dict[str, Any]:
    """Returns the settings of the scratch pipeline. `data` are the user's, as written; `folder` gets the schemas."""
    source = dict(data["source"])
    kept = {name: source[name] for name in ("postgres", "mongo", "link_timeout") if name in source}
    topics = {name: value for name, value in (data.get("topics") or {}).items() if name == "replication"}
    scratch: dict[str, Any] = {
        "pipeline": plan.name,
        "source": kept,
        "schemas": {"folder": str(folder / "schemas")},
        "topics": {**topics, "template": plan.events},
        "kafka": {**data["kafka"], "offsets_topic": plan.offsets, "dead_letter_topic": plan.dead_letters},
    }
    if plan.is_mongo:
        scratch["source"]["collection"] = f"{plan.database}.{plan.outbox}"
        scratch["outbox"] = {"layout": "document"}
    else:
        scratch["source"] |= {"table": plan.outbox, "slot": plan.slot, "publication": plan.slot}
        scratch["outbox"] = {"layout": "debezium", "columns": {"timestamp": "created_at"}}
    scratch |= {name: data[name] for name in ("limits", "retries") if name in data}
    return scratch


def write_schemas(folder: Path) -> None:
    for kind, schema in SCHEMAS.items():
        (folder / "schemas" / kind).mkdir(parents=True)
        (folder / "schemas" / kind / "1.json").write_text(json.dumps(schema), encoding="utf-8")
