"""Accepts TLS connections and counts them before the handshake.

The event loop's own server would create the session only after the handshake. Connections that
never finish it would then count for no limit, and could use up all file descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.broker.session import Session
from tidegate.core.errors import LimitReached, NotAuthenticated, TidegateError
from tidegate.core.runtime import NodeLimits

if TYPE_CHECKING:
    from tidegate.broker.access import Accounts
    from tidegate.broker.context import NodeContext
    from tidegate.broker.session import NodeParts, SessionTransport


log = logging.getLogger(__name__)

_BACKLOG = 1024
# Pause after a failed accept. Without it the loop would spin while the process has no free file
# descriptors.
_OUT_OF_SOCKETS_S = 0.1


class TlsListener:
    """Listening sockets with TLS; has the methods of asyncio's server that a node uses."""

    def __init__(self, parts: NodeParts, tls: ssl.SSLContext, sockets: list[socket.socket]) -> None:
        self._parts = parts
        self._tls = tls
        self.sockets = sockets
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def bind(cls, parts: NodeParts, tls: ssl.SSLContext, host: str, port: int) -> TlsListener:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sockets: list[socket.socket] = []
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                listening = socket.create_server(
                    address, family=family, backlog=_BACKLOG, reuse_port=False
                )
                listening.setblocking(False)
                sockets.append(listening)
        except OSError:
            for listening in sockets:
                listening.close()
            raise
        return cls(parts, tls, sockets)

    async def start_serving(self) -> None:
        for listening in self.sockets:
            self._start(self._accept_forever(listening))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for listening in self.sockets:
            listening.close()

    def _start(self, work) -> None:  # type: ignore[no-untyped-def]
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_forever(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as failure:
                log.warning("cannot accept a connection: %s", failure)
                await asyncio.sleep(_OUT_OF_SOCKETS_S)
                continue
            session = Session(self._parts)
            session.on_connected(peer)
            if not self._parts.sessions.admit(session):
                accepted.close()
                continue
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._shake_hands(session, accepted))

    async def _shake_hands(self, session: Session, accepted: socket.socket) -> None:
        connected = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: session,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._parts.context.limits.handshake_s,
            )
            connected = True
        except (OSError, ssl.SSLError) as failure:
            log.debug("no TLS with %s: %s", session.address, failure)
        finally:
            if not connected:
                self._parts.sessions.remove(session)
                accepted.close()


# Limits on connections: in all, unauthenticated, per address and per user.
#
# A connection is unauthenticated until its client has identified itself. Unauthenticated
# connections get at most half of all slots. Clients can therefore always connect, even if many
# sockets are opened and never used. Connections of other nodes carry many users from one address,
# so only the limit in all applies to them.


class ConnectionSlot:
    """The counts that one connection is part of."""

    __slots__ = ("address", "is_stranger", "user")

    def __init__(self, address: str) -> None:
        # None: the connection does not count for its address.
        self.address: str | None = address
        self.user: str | None = None
        self.is_stranger = True


class ConnectionSlots:
    """Counts the connections of a node against its limits."""

    def __init__(self, limits: NodeLimits) -> None:
        self._limits = limits
        self._addresses: Counter[str] = Counter()
        self._users: Counter[str] = Counter()
        self.connections = 0
        self.strangers = 0

    def arrive(self, address: str) -> ConnectionSlot:
        """Reserve a slot for a new connection.

        Raises `LimitReached` if a limit is reached.
        """
        limits = self._limits
        if self.connections >= limits.connections_max:
            raise LimitReached(f"{self.connections} connections are open")
        if self.strangers >= max(limits.connections_max // 2, 1):
            raise LimitReached(f"{self.strangers} connections have not said who they are")
        if self._addresses[address] >= limits.connections_per_address_max:
            raise LimitReached(f"{self._addresses[address]} connections of {address} are open")
        self._addresses[address] += 1
        self.connections += 1
        self.strangers += 1
        return ConnectionSlot(address)

    def log_in(self, place: ConnectionSlot, user: str | None, *, is_node: bool) -> None:
        """Count a connection for its user after the login.

        Raises `LimitReached` if the user has too many connections.
        """
        if is_node:
            self._leave_address(place)
        if user is None or place.user == user or is_node:
            return
        if self._users[user] >= self._limits.connections_per_user_max:
            raise LimitReached(
                f"user {user!r} has {self._users[user]} connections: close some, or raise "
                "node.connections_per_user_max"
            )
        self._users[user] += 1
        place.user = user

    def identify(self, place: ConnectionSlot) -> None:
        if place.is_stranger:
            place.is_stranger = False
            self.strangers -= 1

    def leave(self, place: ConnectionSlot) -> None:
        self.connections -= 1
        self.identify(place)
        self._leave_address(place)
        if place.user is not None:
            _less(self._users, place.user)

    def _leave_address(self, place: ConnectionSlot) -> None:
        if place.address is not None:
            _less(self._addresses, place.address)
            place.address = None


def _less(counter: Counter[str], key: str) -> None:
    """Decrement a count and remove it at 0, or old addresses would accumulate."""
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]


# The sessions of a node: admission, back-pressure and closing.
#
# While the store cannot keep up, the node does not read from sessions that send. Their data waits
# in the sockets. A session that stays silent, or whose client reads nothing, is closed after a time
# limit.


# How long a client without a name is kept after its connection has ended.
_EPHEMERAL_S = 30.0


class Sessions:
    """All sessions of a node."""

    def __init__(
        self, context: NodeContext, accounts: Accounts, admission: ConnectionSlots
    ) -> None:
        self._context = context
        self._accounts = accounts
        self._admission = admission
        self._all: set[Session] = set()
        # Sessions that are not read until the store has caught up.
        self._waiting: set[SessionTransport] = set()
        self._refused_at = float("-inf")

    def __iter__(self) -> Iterator[Session]:
        """Iterate over a copy: sessions may open and close during the iteration."""
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    # Opening and closing

    def admit(self, session: Session) -> bool:
        if self._context.tasks.stopping:
            return False
        try:
            session.place = self._admission.arrive(session.address)
        except LimitReached as full:
            now = self._context.clock.monotonic()
            if now - self._refused_at > 1.0:
                # At most once a second: a flood of connections must not fill the log.
                self._refused_at = now
                log.warning("connection refused: %s", full)
            return False
        self._all.add(session)
        return True

    def remove(self, session: Session) -> None:
        self._all.discard(session)
        for listener in self._context.events.session_ended:
            listener(session)
        if session.place is not None:
            self._admission.leave(session.place)
            session.place = None
        self._waiting.discard(session)

    def forget_client(self, client_id: int) -> None:
        """Delete a client without a name, unless it connects again within 30 s."""

        async def delete() -> None:
            await asyncio.sleep(_EPHEMERAL_S)
            if any(session.client_id == client_id for session in self._all):
                return
            with contextlib.suppress(TidegateError):
                await self._context.store.delete_client(client_id)

        self._context.tasks.do_soon(delete())

    # Back-pressure

    def resume_when_dry(self, peer: SessionTransport) -> None:
        """Read from `peer` again once the store has caught up."""
        if not self._waiting:
            self._context.budget.when_drained(self._resume_reading)
        self._waiting.add(peer)

    def _resume_reading(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for peer in waiting:
            peer.resume_reading()

    # Closing by the node

    def hang_up_on_the_silent(self, now: float) -> None:
        limits = self._context.limits
        for session in self._all.difference(self._waiting):
            patience = 3 * limits.heartbeat_s if session.identified else limits.handshake_s
            # Before the login, single bytes do not prolong a connection.
            since = session.last_heard if session.identified else session.connected_at
            stalled_s = session.stalled_s(now)
            if stalled_s is not None:
                # The node does not read from a session whose client does not read. Its silence
                # therefore proves nothing, and only the unread answers count.
                if stalled_s > limits.slow_reader_s:
                    log.warning(
                        "hung up on who reads nothing", extra={"user": session.authorizer.user}
                    )
                    session.hang_up()
            elif now - since > patience:
                session.hang_up()

    def users_changed(self) -> None:
        """Close sessions whose user was removed or changed since the login."""
        for session in self:
            if not self._accounts.still_holds(session.authorizer):
                session.close_with_error(
                    NotAuthenticated("the user was changed or removed: log in again")
                )

    async def leave_the_dead(self) -> None:
        """Close relays to nodes that are no longer alive.

        The TCP connection to a paused node stays open, and requests would wait for it forever.
        Closing the relay fails them, so that the clients can send them again.
        """
        relaying = [session for session in self._all if session.routes.is_relaying]
        if relaying:
            alive = {m.address for m in await self._context.store.members() if m.alive}
            for session in relaying:
                session.routes.keep_to(alive)

    def close(self) -> None:
        for session in self:
            session.close()

    def abort(self) -> None:
        for session in self:
            session.abort()
