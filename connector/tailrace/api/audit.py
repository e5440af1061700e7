"""The audit log: who changed what over HTTP, with which result; and attempts that were refused.

Each change has two lines with the same request id: one before it is carried out, so that it is logged even if the
process dies meanwhile, and one with its result. No line has a body, a query or a header: those may contain secrets.
The level of this logger cannot be changed over HTTP.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field

from starlette.requests import Request

from tailrace.api.rates import Rates
from tailrace.worker.logs import AUDIT, StructuredLogger

AUDIT_KEY = "audit"
"""The key of the details in the state of a request."""
REFUSALS_AT_ONCE, REFUSALS_PER_SECOND = 60, 1.0
"""Lines about refused attempts: an attacker must not fill the disk."""
_RESULTS: dict[object, str] = {None: "unknown", 0: "done", 2: "refused"}
"""The results of commands by exit code; None if the client was gone before the end."""
_is_request_id = re.compile(r"[A-Za-z0-9_.:-]{1,64}").fullmatch


@dataclass(slots=True)
class AuditedRequest:
    """What the audit log says about one request. Handlers add `details`: names of things, never contents."""

    id: str
    who: str
    role: str
    client: str
    method: str
    path: str
    details: dict[str, object] = field(default_factory=dict)

    def fields(self) -> dict[str, object]:
        return {
            "request": self.id,
            "who": self.who,
            "role": self.role,
            "client": self.client,
            "method": self.method,
            "target": self.path[:300],
            **self.details,
        }


class AuditLog:
    """Writes the lines."""

    def __init__(self) -> None:
        self._log = StructuredLogger(AUDIT)
        self._refusals = Rates(REFUSALS_PER_SECOND, REFUSALS_AT_ONCE, time.monotonic)
        self._left_out = 0

    def requested(self, request: AuditedRequest) -> None:
        self._log.info("change requested", **request.fields())

    def answered(self, request: AuditedRequest, status: int | None) -> None:
        """`status` is None if there was no answer: the client is gone, or the worker has a bug."""
        result = "unknown" if status is None else "done" if status < 400 else "refused" if status < 500 else "failed"
        if result == "done" and "exit_code" in request.details:
            result = _RESULTS.get(request.details["exit_code"], "failed")
        self._log.info("change answered", **request.fields(), status=status, result=result)

    def refused(self, request: AuditedRequest, status: int, why: str) -> None:
        if self._refusals.take("") > 0:
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        more: dict[str, object] = {"refusals_not_logged": left_out} if left_out else {}
        self._log.warning("refused", **request.fields(), status=status, why=why, **more)

    def job_ended(self, job: str, operation: str, pipeline: str, state: str, exit_code: int | None) -> None:
        self._log.info(
            "job ended", job=job, operation=operation, pipeline=pipeline, result=state.lower(), exit_code=exit_code
        )


def request_id(given: str) -> str:
    """Returns the id that a client gave, if it is harmless, or a new one."""
    return given if _is_request_id(given) else secrets.token_hex(8)


def add_details(request: Request, **details: object) -> None:
    """Adds names to the audit line of a request."""
    audited = request.scope.get("state", {}).get(AUDIT_KEY)
    if isinstance(audited, AuditedRequest):
        audited.details.update(details)
