"""Options of the Postgres source, and the connections that it opens with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.auth.tokens import TokenProvider
from tailrace.errors import NoOutboxTable
from tailrace.event import Row
from tailrace.positions.postgres import LsnPosition
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.replay_window import NO_WINDOW, ReplayWindow
from tailrace.sources.postgres.token_login import with_token


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """Which messages are events, and the fields of their content: `required` must be there, others may be."""

    prefix: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    payload: str
    ignored: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """The settings of the same names."""

    conninfo: str
    """The address. To connect, use `address`."""
    table: str
    """The outbox table; `messages:PREFIX` if events are messages. Positions name it."""
    slot: str
    publication: str
    create: bool = True
    beginning: bool = False
    start_where: str = ""
    """The predicate for the rows of the first read; empty: all rows."""
    default_where: bool = False
    """The setting is not given: `start_where` is the layout's own predicate, because rows are marked."""
    order_by: tuple[str, ...] = ("id",)
    timestamp: str | None = None
    id_column: str = "id"
    event_columns: frozenset[str] = frozenset()
    """The columns that an event is made of; they must not change."""
    failover: bool = False
    halt_on_change: bool = False
    link_timeout: float = 30.0
    adopt: bool = False
    replay_window: ReplayWindow = NO_WINDOW
    marks: str = "none"
    is_marked: Callable[[Row], bool] | None = None
    """With row marks, whether the mark of a row says that it is published: its transaction id is that of the mark."""
    mark_columns: frozenset[str] = frozenset()
    """With row marks, the columns that change after a row is published."""
    past: tuple[LsnPosition, ...] = ()
    """Earlier positions of the pipeline, from its position history."""
    messages: MessageOptions | None = None
    """Which messages are events, if there is no table."""
    password: TokenProvider | None = field(default=None, repr=False)
    """Where the password of each new connection comes from, if it is a token."""

    @property
    def address(self) -> str:
        """The connection string for one new connection. Raises TokenUnavailable or TokenRefused."""
        return self.conninfo if self.password is None else with_token(self.conninfo, self.password)

    def require_table(self, purpose: str, *, remedy: str) -> None:
        """Raises NoOutboxTable if events are messages; `purpose` says what the table is needed for."""
        if self.messages is not None:
            raise NoOutboxTable(
                f"the events of this pipeline are messages, and {purpose}",
                why="Messages of pg_logical_emit_message are only in the log, which the server removes once they are "
                "published. No table contains them.",
                remedy=remedy,
            )

    def connect(self, *, replication: bool = False) -> PgConnection:
        """Opens a connection, for queries or for replication."""
        return PgConnection(self.address, replication=replication, timeout=self.link_timeout)


class PgConnections:
    """The open connections of a source; `close` closes them all, the last one first."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._open: list[PgConnection] = []

    def open(self, *, replication: bool = False) -> PgConnection:
        connection = self._options.connect(replication=replication)
        self._open.append(connection)
        return connection

    def close(self) -> None:
        while self._open:
            self._open.pop().close()
