"""All packets by method id: requests for nodes, answers and pushes for clients."""

from __future__ import annotations

from typing import TypeVar

from tidegate.wire import packet
from tidegate.wire.packet import Answer, Packet, Push, Request
from tidegate.wire.packets import (
    browsing,
    clients,
    cluster,
    dead_letters,
    exchange,
    live_numbers,
    login,
    membership,
    prefetch,
    puts,
    queues,
    reads,
    settling,
    steering,
    subscriptions,
    topics,
    topologies,
    transactions,
)

_SUBJECTS = (
    packet,
    login,
    clients,
    queues,
    puts,
    reads,
    browsing,
    subscriptions,
    settling,
    prefetch,
    transactions,
    topics,
    dead_letters,
    live_numbers,
    cluster,
    membership,
    topologies,
    exchange,
    steering,
)

_Kind = TypeVar("_Kind", bound=Packet)


def _by_method(kind: type[_Kind]) -> dict[int, type[_Kind]]:
    things = [thing for subject in _SUBJECTS for thing in vars(subject).values()]
    packets = [thing for thing in things if isinstance(thing, type) and issubclass(thing, kind)]
    # A packet without an id is only a base class.
    return {one.method: one for one in packets if one.method}


REQUESTS = _by_method(Request)
ANSWERS = _by_method(Answer)
PUSHES = _by_method(Push)
