"""The base classes of packets, and the packets that all connections use."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tidegate.core.model import Mode
from tidegate.core.users import Right

Claim = tuple[Right, int | str]


class Packet(msgspec.Struct, array_like=True):
    """The metadata of a packet; message payloads are in the frame's body."""

    method: ClassVar[int] = 0


class Request(Packet):
    """A packet from client to node that has an answer."""

    answer: ClassVar[type[Packet]]
    # Before identification a node accepts only ping, login, register and identify (Telesto section
    # 4.1.2).
    before_identification: ClassVar[bool] = False
    # Before login a node accepts only ping and the login itself.
    before_login: ClassVar[bool] = False
    mode: ClassVar[Mode] = Mode.READ_ONLY
    # The right that the user needs on the queue that the packet names; `None` if it names no queue.
    # There is no default, so that a new packet must declare it.
    right: ClassVar[Right | None]

    def claims(self) -> list[Claim]:
        """Return all queues that the packet names, by id or name, with the right needed on each."""
        queue_id: int | None = getattr(self, "queue_id", None)
        return [] if queue_id is None or self.right is None else [(self.right, queue_id)]


class Answer(Packet):
    """A packet from node to client with the packet id of the request."""


class Push(Packet):
    """A packet from node to client without a request; its packet id is 0."""


# Packets for all connections


class Pong(Answer):
    """The node answers."""

    method = 0x02


class Ping(Request):
    """Check that the node answers; also the client's heartbeat."""

    method = 0x01
    answer = Pong
    before_login = True
    right = None
    before_identification = True


class Success(Answer):
    """The request was executed and has no result."""

    method = 0x04


class Error(Answer):
    """The request was not executed; `code` and `text` give the reason."""

    method = 0x06
    code: int
    text: str
