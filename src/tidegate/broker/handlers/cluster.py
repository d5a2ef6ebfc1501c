"""Handlers of packets about logical queues, replicas and transfers.

Purge, delete, policy and browse of a logical queue act on the queue itself and on all its replicas
(`at_every_replica`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET

from tidegate.core.errors import (
    ChangedMeanwhile,
    InvalidValue,
    NotOwner,
    QueueNotExisting,
    Unavailable,
    UnexpectedPacket,
)
from tidegate.core.replication import Topology, scaled_by_another
from tidegate.node.checks import check_id, check_scaling
from tidegate.node.person_change import note_scaling
from tidegate.node.replica import Replica
from tidegate.wire.connection import Received, State
from tidegate.wire.frames import Frame
from tidegate.wire.packet import Packet, Request, Success
from tidegate.wire.packets.exchange import GiveAway, Pull, PullResponse
from tidegate.wire.packets.membership import Join, Leave, MigrateClients
from tidegate.wire.packets.puts import GetFate, GetFateResponse
from tidegate.wire.packets.steering import SetScaling
from tidegate.wire.packets.topologies import GetTopology, GetTopologyResponse

if TYPE_CHECKING:
    from tidegate.node.session import Session

_ANSWER_S = 10.0

Asked = TypeVar("Asked", bound=Packet)


def join(session: Session, replica: Replica, packet: Join, frame: Frame) -> Awaitable[None] | None:
    alias = session.node.aliases.known(replica)
    if alias is None:
        return _join_later(session, replica, packet, frame)
    session.answer(alias.join(session, packet), frame.packet_id)
    return None


async def _join_later(session: Session, replica: Replica, packet: Join, frame: Frame) -> None:
    alias = await session.node.aliases.alias(replica)
    if session.state is not State.CLOSED:
        session.answer(alias.join(session, packet), frame.packet_id)


def leave(session: Session, replica: Replica, packet: Leave, frame: Frame) -> None:
    alias = session.node.aliases.known(replica)
    if alias is not None:
        alias.leave(session, packet.role, packet.member)
    session.answer(Success(), frame.packet_id)


async def topology(session: Session, replica: Replica, packet: GetTopology, frame: Frame) -> None:
    found = await session.node.store.topology(packet.queue_id)
    if found is None:
        raise InvalidValue(
            f"queue {replica.info.title} is a plain queue: `tidegate scale` spreads it"
        )
    session.answer(GetTopologyResponse(found), frame.packet_id)


async def set_scaling(session: Session, replica: Replica, packet: SetScaling, frame: Frame) -> None:
    name = replica.info.name
    if replica.info.alias_id:
        raise InvalidValue(f"{name!r} is a replica: scale the queue that it is one of")
    if packet.scaling is not None:
        check_scaling(packet.scaling, name)
        if not replica.info.durable:
            raise InvalidValue(
                f"queue {name!r} is transient, and only stored messages can change their replica: "
                "make a durable queue"
            )
    found = await session.node.store.topology(packet.queue_id)
    before = None if found is None else found.scaling
    if packet.is_compared and before == packet.scaling != packet.before:
        # A repeated request after a lost answer: it is done already.
        session.answer(Success(), frame.packet_id)
        return
    expected = packet.before if packet.is_compared else UNSET
    try:
        is_done = await session.node.store.set_scaling(packet.queue_id, packet.scaling, expected)
    except ChangedMeanwhile:
        raise scaled_by_another(name) from None
    if not is_done:
        if packet.scaling is None:
            raise InvalidValue(f"queue {name!r} still has replicas: let them drain first")
        raise QueueNotExisting(f"no queue {name!r}")
    await note_scaling(session, name, before, packet.scaling)
    await session.node.aliases.look(again=True)
    session.answer(Success(), frame.packet_id)


async def migrate(session: Session, replica: Replica, packet: MigrateClients, frame: Frame) -> None:
    alias = await session.node.aliases.alias(replica)
    if not alias.takes_clients(packet.target_id):
        # The leader has just stored that the target serves.
        await session.node.aliases.look(again=True)
        alias = await session.node.aliases.alias(replica)
    alias.migrate(packet)
    session.answer(Success(), frame.packet_id)


async def pull(session: Session, replica: Replica, packet: Pull, frame: Frame) -> None:
    count = await session.node.exchange.pull(
        replica, packet.source, packet.count, homed=packet.homed
    )
    session.answer(PullResponse(count), frame.packet_id)


async def give_away(session: Session, replica: Replica, packet: GiveAway, frame: Frame) -> None:
    if not session.guard.is_node:
        # Only a node knows that the ids it sends are reserved. A node that speaks for a client does
        # not.
        raise UnexpectedPacket("only nodes ask each other for messages: use Pull")
    answer = await session.node.exchange.give_away(replica, packet)
    session.answer(answer, frame.packet_id)


ALIAS_VERBS: dict[
    type[Packet], Callable[[Session, Replica, Any, Frame], Awaitable[None] | None]
] = {
    Join: join,
    Leave: leave,
    GetTopology: topology,
    SetScaling: set_scaling,
    MigrateClients: migrate,
    Pull: pull,
    GiveAway: give_away,
}


async def fate(session: Session, packet: GetFate, event: Received) -> None:
    """Tell whether a batch was stored at a replica that is gone: its marks stay in the store."""
    check_id(packet.replica_id)
    found = await session.node.store.find_queue(packet.replica_id, None)
    if found is not None and found.alias_id != packet.queue_id:
        # The answer must not reveal other queues.
        raise QueueNotExisting(f"queue {packet.queue_id} has no replica {packet.replica_id}")
    if found is not None:
        raise Unavailable(f"replica {packet.replica_id} is still there: send the batch there again")
    marks = await session.node.store.marks(packet.replica_id)
    is_stored = any(low <= packet.batch < high for low, high in marks.get(packet.producer, ()))
    session.answer(GetFateResponse(is_stored), event.packet_id)


# All replicas of a logical queue


def refuse_at_alias(replica: Replica) -> None:
    """Raise `NotOwner` for a queue whose messages are at its replicas."""
    if replica.info.elastic:
        raise NotOwner(f"queue {replica.info.title} is spread over replicas: join it")


async def at_every_replica(
    session: Session,
    alias: Replica,
    here: Callable[[Replica], Awaitable[Asked]],
    request: Callable[[int], Request],
) -> list[tuple[Asked, bytes | memoryview]]:
    """Send the same request to each replica, wherever it is; return the answers with bodies.

    Replicas that are deleted meanwhile are left out.
    """
    node = session.node
    found: Topology | None = await node.store.topology(alias.info.queue_id)
    answers: list[tuple[Any, bytes | memoryview]] = []
    for place in [] if found is None else found.replicas:
        with contextlib.suppress(QueueNotExisting):
            owner = await node.ownership.route(place.queue_id)
            if isinstance(owner, Replica):
                answers.append((await here(owner), b""))
            else:
                answered = await node.neighbours.asked(owner, request(place.queue_id), _ANSWER_S)
                answers.append((answered.packet, answered.body))
    return answers
