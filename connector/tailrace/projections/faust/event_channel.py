"""The channel of an agent whose events are applied exactly once: `@app.agent(app.events("shop.orders", store=store))`.

The agent takes the events from the partition workers of a projection (`core/handover.py`), so the queue of Faust's
channel stays empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

from faust.channels import Channel

from tailrace.errors import ConfigError
from tailrace.projections.core.agent_events import AgentEvent
from tailrace.projections.core.handover import Handover

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp
    from tailrace.projections.projection import Projection


class EventChannel(Channel[AgentEvent]):
    """See the module's docstring."""

    def __init__(self, app: ProjectionApp, projection: Projection, handover: Handover) -> None:
        super().__init__(app)
        self.projection = projection
        self.handover = handover

    def __str__(self) -> str:
        return f"events of {', '.join(self.projection.topics)}"

    # Called by Faust.

    def clone(self, **_: Any) -> Self:  # noqa: ANN401 - Faust's own
        """Returns itself: all tasks of the agent take events from the same projection."""
        return self

    def __aiter__(self) -> Self:
        return self

    def _throw(self, exc: BaseException) -> None:
        """Ends the agent: called when it is stopped."""
        self.handover.close()

    async def throw(self, exc: BaseException) -> None:
        self._throw(exc)

    async def __anext__(self) -> NoReturn:
        raise self._only_for_agents("read outside of its agent")

    async def put(self, value: object) -> NoReturn:
        raise self._only_for_agents("written to")

    async def send(self, **_: Any) -> NoReturn:  # noqa: ANN401 - Faust's own
        raise self._only_for_agents("written to")

    def send_soon(self, **_: Any) -> NoReturn:  # noqa: ANN401 - Faust's own
        raise self._only_for_agents("written to")

    async def publish_message(self, fut: object, wait: bool = True) -> NoReturn:
        raise self._only_for_agents("written to")

    def _only_for_agents(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self.projection.name}: the channel of {self} is {what}",
            why="Its events are those of the topics, in their order, and one agent applies them.",
            remedy="To publish, send to the topic: `app.topic(…).send(…)`. To read, use `@app.agent(app.events(…))`.",
        )
