"""Accepts TLS connections and counts them before the handshake.

The event loop's own server would create the session only after the handshake. Connections that
never finish it would then count for no limit, and could use up all file descriptors.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import TYPE_CHECKING

from tidegate.node.session import Session

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

_BACKLOG = 1024
# Pause after a failed accept. Without it the loop would spin while the process has no free file
# descriptors.
_OUT_OF_SOCKETS_S = 0.1


class Doorstep:
    """Listening sockets with TLS; has the methods of asyncio's server that a node uses."""

    def __init__(self, node: Node, context: ssl.SSLContext, sockets: list[socket.socket]) -> None:
        self._node = node
        self._context = context
        self.sockets = sockets
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def bind(cls, node: Node, context: ssl.SSLContext, host: str, port: int) -> Doorstep:
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
        return cls(node, context, sockets)

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
            session = Session(self._node)
            session.meet(peer)
            if not self._node.sessions.admit(session):
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
                ssl=self._context,
                ssl_handshake_timeout=self._node.limits.handshake_s,
            )
            connected = True
        except (OSError, ssl.SSLError) as failure:
            log.debug("no TLS with %s: %s", session.address, failure)
        finally:
            if not connected:
                self._node.sessions.forget(session)
                accepted.close()
