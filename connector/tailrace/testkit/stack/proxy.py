"""`TcpProxy`: a wire that can be cut, held, slowed and silenced, between a client and a server.

It listens on a port that never changes and forwards to a target. One thread owns every socket and all state;
a method hands its order to that thread and returns when it is in force, so a test can rely on it at once.

The faults, per direction where that makes sense: `cut` (reset what is open), `refuse` (nobody listens),
`blackhole` (connections stay open, nothing moves, not even a close: what a dropped route looks like), `hold`
(the sender's bytes are taken but wait here), `cut_after` (so many bytes, then the end), `throttle`.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.flow import Direction, Flow, ProxiedConnection
from tailrace.testkit.stack.ports import HOST, can_bind, free_port

ORDER_TIMEOUT = 10.0
BACKLOG = 128


class TcpProxy:
    """Forwards `port` on the loopback address to `target`; started on entering."""

    def __init__(self, target: tuple[str, int] | None = None, *, port: int | None = None) -> None:
        self.port = port or free_port()
        self.host = HOST
        self._target = target
        self._listener: socket.socket | None = None
        self._pairs: set[ProxiedConnection] = set()
        self._modes = dict.fromkeys(Direction, Flow.FORWARD)
        self._moved = dict.fromkeys(Direction, 0)
        self._cut_at: dict[Direction, int] = {}
        self._rate: float | None = None
        self._spent_until = dict.fromkeys(Direction, 0.0)
        self._cuts = 0
        self._orders: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._ended = False

    def __enter__(self) -> Self:
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        self.accept()
        return self

    def __exit__(self, *exc: object) -> None:
        self._order(self._end)
        self._thread.join(ORDER_TIMEOUT)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open through the proxy now."""
        return len(self._pairs)

    @property
    def cuts(self) -> int:
        """How many times connections were cut, by `cut` or when `cut_after` came due."""
        return self._cuts

    def moved(self, direction: Direction) -> int:
        """How many bytes were forwarded in this direction (one, not BOTH) since the start."""
        return self._moved[direction]

    def point_at(self, host: str, port: int) -> None:
        """New connections go there; those that are open stay where they are."""
        self._order(lambda: setattr(self, "_target", (host, port)))

    def cut(self) -> None:
        """Reset every open connection; new ones are welcome."""
        self._order(self._cut)

    def refuse(self) -> None:
        """Stop listening: who connects now is refused. Open connections go on."""
        self._order(self._close_listener)

    def accept(self) -> None:
        """Listen (again), on the same port."""
        self._order(self._listen)
        if self._listener is None:
            raise StackError(
                f"the proxy cannot listen on port {self.port}",
                why="somebody else does" if not can_bind(self.port) else "",
            )

    def blackhole(self, *directions: Direction) -> None:
        """Nothing moves any more in these directions (both, when none is named), and nobody is told."""
        self._order(lambda: self._set(directions, Flow.SILENT))

    def hold(self, *directions: Direction) -> None:
        """Take the bytes of these directions (both, when none is named) and keep them until `release`."""
        self._order(lambda: self._set(directions, Flow.HOLD))

    def release(self) -> None:
        """Forward what `hold` kept, in order, and what follows. The same as `restore` for held directions."""
        held = tuple(way for way, mode in self._modes.items() if mode is Flow.HOLD)
        if held:
            self._order(lambda: self._set(held, Flow.FORWARD))

    def cut_after(self, n_bytes: int, direction: Direction) -> None:
        """Forward exactly `n_bytes` more in this direction, then close everything. Happens once."""

        def arm() -> None:
            self._cut_at[direction] = self._moved[direction] + n_bytes

        self._order(arm)

    def throttle(self, bytes_per_second: float | None) -> None:
        """Let so much through per direction; None lifts the limit."""
        self._order(lambda: setattr(self, "_rate", bytes_per_second))

    def restore(self) -> None:
        """A good wire again: forward, listen, no limit, nothing armed."""

        def heal() -> None:
            self._set((), Flow.FORWARD)
            self._cut_at.clear()
            self._rate = None

        self._order(heal)
        self.accept()

    # From here on everything runs in the proxy's own thread.

    def _order(self, action: Callable[[], None]) -> None:
        done = threading.Event()
        self._orders.append((action, done))
        self._waker.send(b"!")
        if not done.wait(ORDER_TIMEOUT):
            raise StackError("the proxy's thread does not answer", remedy="enter the proxy (`with`) before using it")

    def _run(self) -> None:
        while not self._ended:
            self._pass_on_ends()
            pause = self._renew_interest()
            for key, events in self._selector.select(pause):
                if key.fileobj is self._woken:
                    self._obey()
                elif key.fileobj is self._listener:
                    self._welcome()
                else:
                    pair: ProxiedConnection = key.data
                    if pair in self._pairs:
                        self._serve(pair, key.fileobj, events)  # type: ignore[arg-type]

    def _obey(self) -> None:
        self._woken.recv(4096)
        while self._orders:
            action, done = self._orders.popleft()
            action()
            done.set()

    def _welcome(self) -> None:
        try:
            client, _ = self._listener.accept() if self._listener else (None, None)
        except OSError:
            return  # the client gave up in between
        if client is None:
            return
        if self._target is None:
            client.close()
            return
        self._pairs.add(ProxiedConnection(client, self._target))

    def _renew_interest(self) -> float | None:
        """Tell the selector what each socket waits for; returns how long it may wait at most."""
        now = time.monotonic()
        wake_at = None
        for pair in self._pairs:
            rested = {way: self._rate is None or self._spent_until[way] <= now for way in Direction}
            for sock, wanted in pair.interest(self._modes, rested).items():
                self._register(sock, wanted, pair)
            waiting = [self._spent_until[way] for way in Direction if not rested[way] and pair.pending(way)]
            wake_at = min(waiting + ([wake_at] if wake_at is not None else []), default=None)
        return None if wake_at is None else max(0.0, wake_at - now)

    def _register(self, sock: socket.socket, wanted: int, pair: ProxiedConnection | None) -> None:
        known = self._selector.get_map().get(sock)
        if known is None:
            if wanted:
                self._selector.register(sock, wanted, pair)
        elif not wanted:
            self._selector.unregister(sock)
        elif known.events != wanted:
            self._selector.modify(sock, wanted, pair)

    def _serve(self, pair: ProxiedConnection, sock: socket.socket, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._write(pair, sock)
            if events & selectors.EVENT_READ and pair in self._pairs:
                pair.read(sock)
        except OSError:
            self._drop(pair, reset=True)

    def _pass_on_ends(self) -> None:
        """Once a round, not only after a read: a direction released from a hold may have ended long ago."""
        for pair in tuple(self._pairs):
            try:
                if pair.finished(self._modes):
                    self._drop(pair)
            except OSError:
                self._drop(pair, reset=True)

    def _write(self, pair: ProxiedConnection, sock: socket.socket) -> None:
        if pair.connecting:
            pair.connected()
            return
        way = pair.way_to(sock)
        limit = self._cut_at[way] - self._moved[way] if way in self._cut_at else None
        if self._rate is not None:
            # Small portions, so that a slow wire is a steady trickle and not a rare burst.
            portion = max(1, int(self._rate / 20))
            limit = portion if limit is None else min(limit, portion)
        sent = pair.write(way, limit)
        self._moved[way] += sent
        if self._rate is not None:
            self._spent_until[way] = max(self._spent_until[way], time.monotonic()) + sent / self._rate
        if way in self._cut_at and self._moved[way] >= self._cut_at[way]:
            del self._cut_at[way]
            # A plain close, not a reset: a reset could make the receiver lose bytes that did arrive.
            self._cut(reset=False)

    def _set(self, directions: tuple[Direction, ...], mode: Flow) -> None:
        for way in directions or tuple(Direction):
            self._modes[way] = mode

    def _cut(self, reset: bool = True) -> None:
        self._cuts += 1
        for pair in tuple(self._pairs):
            self._drop(pair, reset)

    def _drop(self, pair: ProxiedConnection, reset: bool = False) -> None:
        for sock in (pair.client, pair.server):
            self._register(sock, 0, None)
        pair.close(reset)
        self._pairs.discard(pair)

    def _listen(self) -> None:
        if self._listener is not None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind((HOST, self.port))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            return
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _end(self) -> None:
        self._close_listener()
        for pair in tuple(self._pairs):
            self._drop(pair, reset=True)
        self._ended = True
