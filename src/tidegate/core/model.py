"""The nouns that every room shares: clients, queues, and what travels about them."""

from __future__ import annotations

import enum

import msgspec

PRIORITY_LOWEST = 1
PRIORITY_DEFAULT = 5
PRIORITY_HIGHEST = 10


class Mode(enum.IntEnum):
    """What a client may do (Telesto §3.1.1, plus admin)."""

    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3


class Order(enum.IntEnum):
    """Which message a read takes first."""

    OLDEST = 1
    PRIORITY = 2


class ClientInfo(msgspec.Struct, array_like=True, frozen=True):
    """A registered client."""

    client_id: int
    name: str
    mode: Mode


class QueueInfo(msgspec.Struct, array_like=True, frozen=True):
    """A queue as the catalogue knows it."""

    queue_id: int
    name: str
    durable: bool = True


class Attributes(msgspec.Struct, array_like=True, frozen=True):
    """What a message may carry beside its payload; most carry none of it."""

    content_type: str | None = None
    headers: dict[str, str] | None = None
