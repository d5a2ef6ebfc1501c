"""What a client may ask about clients, queues and nodes: a function per packet.

These wait for the store, beside whatever else the connection does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.core.errors import (
    ClientNameNotUnique,
    ClientNotExisting,
    ModeForbids,
    NoActiveQueues,
    NoQueues,
    QueueNameNotUnique,
    QueueNotExisting,
    RequiredParameterMissing,
)
from tidegate.core.model import Mode, QueueInfo
from tidegate.node.checks import check_id, check_name, check_policy, check_put_to_queues
from tidegate.node.login import act_for, authenticate, prove
from tidegate.node.topic_verbs import TOPIC_VERBS
from tidegate.node.transactions import transact
from tidegate.wire import packets as w
from tidegate.wire.connection import Received

if TYPE_CHECKING:
    from tidegate.node.session import Session


def ping(session: Session, packet: w.Ping, event: Received) -> None:
    session.answer(w.Pong(), event.packet_id)


async def register(session: Session, packet: w.RegisterClient, event: Received) -> None:
    name = check_name(packet.name, session.limits)
    client = await session.node.store.register_client(name, packet.mode_wanted, session.guard.user)
    if client is None:
        raise ClientNameNotUnique(f"a client named {name!r} exists: identify, or choose a name")
    session.become(client, ephemeral=packet.ephemeral)
    session.answer(w.RegisterClientResponse(client), event.packet_id)


async def identify(session: Session, packet: w.IdentifyClient, event: Received) -> None:
    if packet.client_id is None and packet.name is None:
        raise RequiredParameterMissing("identify by client_id or by name")
    if packet.client_id is not None:
        check_id(packet.client_id)
    if packet.name is not None:
        check_name(packet.name, session.limits)
    client = await session.node.store.find_client(packet.client_id, packet.name, session.guard.user)
    if client is None:
        of = f" of user {session.guard.user!r}" if session.guard.user else ""
        raise ClientNotExisting(f"no client {packet.name or packet.client_id!r}{of}")
    session.become(client, ephemeral=packet.ephemeral)
    session.answer(w.IdentifyClientResponse(client), event.packet_id)


async def delete_client(session: Session, packet: w.DeleteClient, event: Received) -> None:
    is_admin = session.mode is Mode.ADMIN and session.guard.is_everything
    if packet.client_id != session.client_id and not is_admin:
        raise ModeForbids("only an admin deletes other clients")
    check_id(packet.client_id)
    if not await session.node.store.delete_client(packet.client_id):
        raise ClientNotExisting(f"no client {packet.client_id}")
    session.answer(w.Success(), event.packet_id)


async def find_client(session: Session, packet: w.FindClient, event: Received) -> None:
    name = check_name(packet.name, session.limits)
    client_id = await session.node.store.reserve_client(name)
    session.answer(w.FindClientResponse(client_id), event.packet_id)


async def create_queue(session: Session, packet: w.CreateQueue, event: Received) -> None:
    name = check_name(packet.name, session.limits)
    check_policy(packet.policy, name, session.limits)
    queue = await session.node.store.create_queue(name, packet.durable, packet.policy)
    if queue is None:
        raise QueueNameNotUnique(f"a queue named {name!r} exists")
    await session.node.ownership.route(queue.queue_id)
    session.answer(w.CreateQueueResponse(queue), event.packet_id)


async def queue_by_name(session: Session, packet: w.GetQueueId, event: Received) -> None:
    name = check_name(packet.name, session.limits)
    queue = await session.node.store.find_queue(None, name)
    if queue is None:
        raise QueueNotExisting(f"no queue named {name!r}: create it first")
    session.answer(w.GetQueueIdResponse(queue), event.packet_id)


async def queue_by_id(session: Session, packet: w.GetQueueName, event: Received) -> None:
    check_id(packet.queue_id)
    queue = await session.node.store.find_queue(packet.queue_id, None)
    if queue is None:
        raise QueueNotExisting(f"no queue {packet.queue_id}")
    session.answer(w.GetQueueNameResponse(queue), event.packet_id)


async def queues(session: Session, packet: w.GetQueues, event: Received) -> None:
    listed = await session.node.store.list_queues()
    found = session.guard.visible(listed, lambda queue: queue.name)
    if not found:
        raise NoQueues("there are no queues yet")
    session.answer(w.GetQueuesResponse(found), event.packet_id)


async def active_queues(session: Session, packet: w.GetActiveQueues, event: Received) -> None:
    stored = await session.node.store.active_queues(session.client_id)
    active: dict[int, QueueInfo] = {queue.queue_id: queue for queue in stored}
    # What is ours is known better, and transient queues only here.
    for queue_id, replica in session.node.replicas.items():
        if replica.knows_all_for(session.client_id):
            active.pop(queue_id, None)
        if replica.has_for(session.client_id):
            active[queue_id] = replica.info
    visible = session.guard.visible(active.values(), lambda queue: queue.name)
    if not visible:
        raise NoActiveQueues("no queue holds a message for this client")
    found = sorted(visible, key=lambda queue: queue.name)
    session.answer(w.GetActiveQueuesResponse(found), event.packet_id)


async def put_to_queues(session: Session, packet: w.PutToQueues, event: Received) -> None:
    check_put_to_queues(packet, len(event.body), session.limits)
    took = await session.node.publishing.put_to(packet, bytes(event.body), session.client_id)
    if isinstance(took, str):
        await session.forward_to(took, packet, event.frame)
        return
    session.answer(w.PutToQueuesResponse(took), event.packet_id)


async def stats(session: Session, packet: w.Stats, event: Received) -> None:
    numbers = await session.node.numbers(packet.queue_id, packet.cluster)
    for node in numbers.nodes:
        node.queues = session.guard.visible(node.queues, lambda queue: queue.name)
    session.answer(w.StatsResponse(), event.packet_id, [msgspec.json.encode(numbers)])


async def members(session: Session, packet: w.GetMembers, event: Received) -> None:
    found = [
        w.Member(member.member_id, member.name, member.address, member.alive, member.queues)
        for member in await session.node.store.members()
    ]
    session.answer(w.GetMembersResponse(found), event.packet_id)


CatalogueVerb = Callable[["Session", Any, Received], Awaitable[None] | None]
CATALOGUE_VERBS: dict[type[w.Packet], CatalogueVerb] = {
    w.Ping: ping,
    w.Authenticate: authenticate,
    w.Prove: prove,
    w.ActFor: act_for,
    w.RegisterClient: register,
    w.IdentifyClient: identify,
    w.DeleteClient: delete_client,
    w.FindClient: find_client,
    w.CreateQueue: create_queue,
    w.GetQueueId: queue_by_name,
    w.GetQueueName: queue_by_id,
    w.GetQueues: queues,
    w.GetActiveQueues: active_queues,
    w.PutToQueues: put_to_queues,
    w.Transact: transact,
    **TOPIC_VERBS,
    w.Stats: stats,
    w.GetMembers: members,
}
