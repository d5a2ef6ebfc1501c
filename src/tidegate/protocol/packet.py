"""The base classes of packets, and the packets that all connections use."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tidegate.core.model import Attributes, ClientMode, Right

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
    mode: ClassVar[ClientMode] = ClientMode.READ_ONLY
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


class Run(msgspec.Struct, array_like=True):
    """Consecutive messages of one segment; a column with one element applies to all.

    `tag` numbers the deliveries of a consumer and is used to settle them.
    """

    tag: int
    message_id: int
    lengths: list[int]
    senders: list[int]
    priority: int
    arrived_at: float
    receivers: list[int] | None = None
    contexts: list[int | None] | None = None
    attributes: list[Attributes | None] | None = None
    redelivered: bool = False
    # How often each message was delivered, this time included; [1] for first deliveries.
    deliveries: list[int] = msgspec.field(default_factory=lambda: [1])


# All packets: their method ids, fields, answers, and the rights they need.
#
# Packets are grouped by subject, and a registry contains all of them by method id.
#
# Telesto's ids (its table 3.6) are kept where the method exists. Telesto's rule is kept, too: ids
# from client to node are odd, ids from node to client are even, and an answer has the id of its
# request plus 1. Telesto's own table breaks this rule in five places, where the ids differ: Success
# 0x03 → 0x04, Error 0x05 → 0x06, ReadMessage 0x32 → 0x33, its response 0x33 → 0x34, ReadResponse
# 0x34 → 0x35. The reference in docs/wire-protocol.md is generated from the packets.
