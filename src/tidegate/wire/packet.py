"""What a packet is, and those that every exchange of packets needs."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tidegate.core.model import Mode
from tidegate.core.users import Right

Claim = tuple[Right, int | str]


class Packet(msgspec.Struct, array_like=True):
    """A packet's metadata; message payloads travel in the frame's body."""

    method: ClassVar[int] = 0


class Request(Packet):
    """From client to node."""

    answer: ClassVar[type[Packet]]
    # Before identification only ping, register and identify answer (Telesto §4.1.2).
    before_identification: ClassVar[bool] = False
    # Of these, ping and the login itself come before it.
    before_login: ClassVar[bool] = False
    mode: ClassVar[Mode] = Mode.READ_ONLY
    # What the user needs on the queue that the packet names; None: it is about no queue. Without
    # a default, so that a new packet is of no use until it says.
    right: ClassVar[Right | None]

    def claims(self) -> list[Claim]:
        """Every queue that it names, by id or by name, with what the user needs there."""
        queue_id: int | None = getattr(self, "queue_id", None)
        return [] if queue_id is None or self.right is None else [(self.right, queue_id)]


class Answer(Packet):
    """From node to client, repeating the packet id of the request."""


class Push(Packet):
    """From node to client, unasked; packet id 0."""


# General


class Pong(Answer):
    """The node is there."""

    method = 0x02


class Ping(Request):
    """Is the node there? Also the client's heartbeat."""

    method = 0x01
    answer = Pong
    before_login = True
    right = None
    before_identification = True


class Success(Answer):
    """It is done, and there is nothing to say about it."""

    method = 0x04


class Error(Answer):
    """It was not done; code and sentence say why."""

    method = 0x06
    code: int
    text: str
