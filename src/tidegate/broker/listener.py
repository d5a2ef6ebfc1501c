"""The sessions of a node: admission, back-pressure and closing.

While the store cannot keep up, the node does not read from sessions that send. Their data waits in
the sockets. A session that stays silent, or whose client reads nothing, is closed after a time
limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.core.errors import LimitReached, NotAuthenticated, TidegateError
from tidegate.node.peer import Peer
from tidegate.node.session import Session

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

# How long a client without a name is kept after its connection has ended.
_EPHEMERAL_S = 30.0


class Sessions:
    """All sessions of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._all: set[Session] = set()
        # Sessions that are not read until the store has caught up.
        self._waiting: set[Peer] = set()
        self._refused_at = float("-inf")

    def __iter__(self) -> Iterator[Session]:
        """Iterate over a copy: sessions may open and close during the iteration."""
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    # Opening and closing

    def admit(self, session: Session) -> bool:
        node = self._node
        if node.stopping:
            return False
        try:
            session.place = node.admission.arrive(session.address)
        except LimitReached as full:
            now = node.clock.monotonic()
            if now - self._refused_at > 1.0:
                # At most once a second: a flood of connections must not fill the log.
                self._refused_at = now
                log.warning("connection refused: %s", full)
            return False
        self._all.add(session)
        return True

    def forget(self, session: Session) -> None:
        self._all.discard(session)
        self._node.aliases.forget_session(session)
        if session.place is not None:
            self._node.admission.leave(session.place)
            session.place = None
        self._waiting.discard(session)

    def forget_client(self, client_id: int) -> None:
        """Delete a client without a name, unless it connects again within 30 s."""

        async def delete() -> None:
            await asyncio.sleep(_EPHEMERAL_S)
            if any(session.client_id == client_id for session in self._all):
                return
            with contextlib.suppress(TidegateError):
                await self._node.store.delete_client(client_id)

        self._node.do_soon(delete())

    # Back-pressure

    def resume_when_dry(self, peer: Peer) -> None:
        """Read from `peer` again once the store has caught up."""
        self._waiting.add(peer)

    def resume_reading(self) -> None:
        if self._waiting and not self._node.budget.is_flooded:
            waiting, self._waiting = self._waiting, set()
            for peer in waiting:
                peer.resume_reading()

    # Closing by the node

    def hang_up_on_the_silent(self, now: float) -> None:
        limits = self._node.limits
        for session in self._all.difference(self._waiting):
            patience = 3 * limits.heartbeat_s if session.identified else limits.handshake_s
            # Before the login, single bytes do not prolong a connection.
            since = session.last_heard if session.identified else session.connected_at
            stalled_s = session.stalled_s(now)
            if stalled_s is not None:
                # The node does not read from a session whose client does not read. Its silence
                # therefore proves nothing, and only the unread answers count.
                if stalled_s > limits.slow_reader_s:
                    log.warning("hung up on who reads nothing", extra={"user": session.guard.user})
                    session.hang_up()
            elif now - since > patience:
                session.hang_up()

    def users_changed(self) -> None:
        """Close sessions whose user was removed or changed since the login."""
        for session in self:
            if not self._node.accounts.still_holds(session.guard):
                session.end(NotAuthenticated("the user was changed or removed: log in again"))

    async def leave_the_dead(self) -> None:
        """Close relays to nodes that are no longer alive.

        The TCP connection to a paused node stays open, and requests would wait for it forever.
        Closing the relay fails them, so that the clients can send them again.
        """
        relaying = [session for session in self._all if session.routes.is_relaying]
        if relaying:
            alive = {m.address for m in await self._node.store.members() if m.alive}
            for session in relaying:
                session.routes.keep_to(alive)

    def close(self) -> None:
        for session in self:
            session.close()

    def abort(self) -> None:
        for session in self:
            session.abort()
