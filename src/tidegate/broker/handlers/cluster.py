"""Handlers of packets about logical queues, replicas and transfers.

Purge, delete, policy and browse of a logical queue act on the queue itself and on all its replicas
(`at_every_replica`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET

from tidegate.broker.handlers import check_id, check_scaling
from tidegate.broker.replica import Replica
from tidegate.core.decisions import FLEET, OVERRIDE_LAW, Decision
from tidegate.core.errors import (
    ChangedMeanwhile,
    InvalidValue,
    QueueNotExisting,
    TidegateError,
    Unavailable,
    UnexpectedPacket,
)
from tidegate.core.machines import FleetInfo, MachineState, Slot, SlotKind
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import format_goal as goal_told
from tidegate.core.services import ServiceOverride, decision_subject, override_problems
from tidegate.core.services import describe_override_change as by_hand_told
from tidegate.core.topology import (
    Scaling,
    Topology,
    format_scaling_keys,
    logical_name,
    scaling_changed_meanwhile,
)
from tidegate.protocol.cluster import (
    Explain,
    ExplainResponse,
    ExplainService,
    ExplainServiceResponse,
    GetFleet,
    GetFleetResponse,
    GetTopology,
    GetTopologyResponse,
    GiveAway,
    Join,
    Leave,
    MigrateClients,
    Pull,
    PullResponse,
    SetScaling,
    SteerService,
)
from tidegate.protocol.connection import Frame, ProtocolState, ReceivedPacket
from tidegate.protocol.messages import GetFate, GetFateResponse
from tidegate.protocol.packet import Packet, Request, Success

if TYPE_CHECKING:
    from tidegate.broker.session import Session


_ANSWER_S = 10.0

ForwardedPacket = TypeVar("ForwardedPacket", bound=Packet)


def join(session: Session, replica: Replica, packet: Join, frame: Frame) -> Awaitable[None] | None:
    alias = session.parts.aliases.logical_queue(replica)
    if alias is None:
        return _join_later(session, replica, packet, frame)
    session.answer(alias.join(session, packet), frame.packet_id)
    return None


async def _join_later(session: Session, replica: Replica, packet: Join, frame: Frame) -> None:
    alias = await session.parts.aliases.alias(replica)
    if session.state is not ProtocolState.CLOSED:
        session.answer(alias.join(session, packet), frame.packet_id)


def leave(session: Session, replica: Replica, packet: Leave, frame: Frame) -> None:
    alias = session.parts.aliases.logical_queue(replica)
    if alias is not None:
        alias.leave(session, packet.role, packet.member)
    session.answer(Success(), frame.packet_id)


async def topology(session: Session, replica: Replica, packet: GetTopology, frame: Frame) -> None:
    found = await session.context.store.topology(packet.queue_id)
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
    found = await session.context.store.topology(packet.queue_id)
    before = None if found is None else found.scaling
    if packet.is_compared and before == packet.scaling != packet.before:
        # A repeated request after a lost answer: it is done already.
        session.answer(Success(), frame.packet_id)
        return
    expected = packet.before if packet.is_compared else UNSET
    try:
        is_done = await session.context.store.set_scaling(packet.queue_id, packet.scaling, expected)
    except ChangedMeanwhile:
        raise scaling_changed_meanwhile(name) from None
    if not is_done:
        if packet.scaling is None:
            raise InvalidValue(f"queue {name!r} still has replicas: let them drain first")
        raise QueueNotExisting(f"no queue {name!r}")
    await record_scaling_override(session, name, before, packet.scaling)
    await session.parts.aliases.poll(again=True)
    session.answer(Success(), frame.packet_id)


async def migrate(session: Session, replica: Replica, packet: MigrateClients, frame: Frame) -> None:
    alias = await session.parts.aliases.alias(replica)
    if not alias.takes_clients(packet.target_id):
        # The leader has just stored that the target serves.
        await session.parts.aliases.poll(again=True)
        alias = await session.parts.aliases.alias(replica)
    alias.migrate(packet)
    session.answer(Success(), frame.packet_id)


async def pull(session: Session, replica: Replica, packet: Pull, frame: Frame) -> None:
    count = await session.parts.exchange.pull(
        replica, packet.source, packet.count, homed=packet.homed
    )
    session.answer(PullResponse(count), frame.packet_id)


async def give_away(session: Session, replica: Replica, packet: GiveAway, frame: Frame) -> None:
    if not session.authorizer.is_node:
        # Only a node knows that the ids it sends are reserved. A node that speaks for a client does
        # not.
        raise UnexpectedPacket("only nodes ask each other for messages: use Pull")
    answer = await session.parts.exchange.give_segments(replica, packet)
    session.answer(answer, frame.packet_id)


LOGICAL_QUEUE_HANDLERS: dict[
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


async def get_fate(session: Session, packet: GetFate, event: ReceivedPacket) -> None:
    """Tell whether a batch was stored at a replica that is gone: its marks stay in the store."""
    check_id(packet.replica_id)
    found = await session.context.store.find_queue(packet.replica_id, None)
    if found is not None and found.alias_id != packet.queue_id:
        # The answer must not reveal other queues.
        raise QueueNotExisting(f"queue {packet.queue_id} has no replica {packet.replica_id}")
    if found is not None:
        raise Unavailable(f"replica {packet.replica_id} is still there: send the batch there again")
    marks = await session.context.store.marks(packet.replica_id)
    is_stored = any(low <= packet.batch < high for low, high in marks.get(packet.producer, ()))
    session.answer(GetFateResponse(is_stored), event.packet_id)


# All replicas of a logical queue


async def at_every_replica(
    session: Session,
    alias: Replica,
    here: Callable[[Replica], Awaitable[ForwardedPacket]],
    request: Callable[[int], Request],
) -> list[tuple[ForwardedPacket, bytes | memoryview]]:
    """Send the same request to each replica, wherever it is; return the answers with bodies.

    Replicas that are deleted meanwhile are left out.
    """
    found: Topology | None = await session.context.store.topology(alias.info.queue_id)
    answers: list[tuple[Any, bytes | memoryview]] = []
    for place in [] if found is None else found.replicas:
        with contextlib.suppress(QueueNotExisting):
            owner = await session.parts.ownership.route(place.queue_id)
            if isinstance(owner, Replica):
                answers.append((await here(owner), b""))
            else:
                answered = await session.parts.node_clients.request_with_body(
                    owner, request(place.queue_id), _ANSWER_S
                )
                answers.append((answered.packet, answered.body))
    return answers


# Handler of the packet about machines.


async def fleet(session: Session, packet: GetFleet, event: ReceivedPacket) -> None:
    """Answer with all machines, and with the slots that the user may see."""
    store = session.context.store
    leader, epoch = await store.leader()
    living = {member.member_id for member in await store.members() if member.alive}
    machines = await store.machines()
    # The cached topologies: consoles ask every two seconds, and the store is asked only for
    # changes.
    _, known = await session.parts.aliases.all_of_them()
    topologies = session.authorizer.visible(known, lambda one: one.queue)
    places = [(topology.queue, place) for topology in topologies for place in topology.replicas]
    instances = session.authorizer.visible(await store.instances(), lambda one: one.service)
    found = FleetInfo(
        leader=leader if leader in living else None,
        epoch=epoch,
        machines=machines,
        slots=[
            Slot(
                machine_id=place.machine_id,
                queue=queue,
                number=place.number,
                state=place.state,
                share=place.share,
            )
            for queue, place in places
            if place.machine_id is not None
        ]
        + [
            Slot(
                machine_id=one.machine_id,
                queue=one.service,
                number=one.instance_id,
                state=one.state,
                share=one.weight,
                kind=SlotKind.INSTANCE,
            )
            for one in instances
            if one.machine_id is not None
        ],
        warm=sum(one.state is MachineState.WARM and one.alive for one in machines),
        unplaced=sum(place.machine_id is None for _, place in places),
        instances_waiting=sum(one.machine_id is None for one in instances),
    )
    session.answer(GetFleetResponse(), event.packet_id, [msgspec.json.encode(found)])


# Handler of overrides of HTTP services.


async def steer_service(session: Session, packet: SteerService, event: ReceivedPacket) -> None:
    """Store a user's override of a service; the leader applies it."""
    if wrong := override_problems(packet.by_hand):
        raise InvalidValue("; ".join(wrong))
    store = session.context.store
    services = {one.spec.name: one for one in await store.services()}
    service = services.get(packet.service)
    # A repeated request after a lost answer: it is stored already.
    if service is None or service.by_hand != packet.by_hand:
        if not await store.steer_service(packet.service, packet.by_hand, packet.before):
            raise InvalidValue(f"no service is called {packet.service!r}: see `tidegate services`")
        await record_service_override(session, packet.service, packet.before, packet.by_hand)
    session.answer(Success(), event.packet_id)


# Handlers that return recent decisions of the control loops.


# The number of decisions that the store keeps.
EXPLAIN_COUNT_MAX = 500


async def explain(session: Session, packet: Explain, event: ReceivedPacket) -> None:
    """Answer with recent decisions about a queue, or about machines without a queue id."""
    _check_count(packet.count)
    store = session.context.store
    service = FLEET
    if packet.queue_id is not None:
        queue = await store.find_queue(packet.queue_id, None)
        if queue is None:
            raise QueueNotExisting(f"no queue {packet.queue_id}")
        service = logical_name(queue.name)
    documents = await store.decisions(service, packet.count)
    session.answer(ExplainResponse(), event.packet_id, [b"\n".join(documents)])


async def explain_service(session: Session, packet: ExplainService, event: ReceivedPacket) -> None:
    """Answer with recent decisions about a service."""
    _check_count(packet.count)
    store = session.context.store
    if packet.service not in [one.spec.name for one in await store.services()]:
        raise InvalidValue(f"no service is called {packet.service!r}: see `tidegate services`")
    documents = await store.decisions(decision_subject(packet.service), packet.count)
    session.answer(ExplainServiceResponse(), event.packet_id, [b"\n".join(documents)])


def _check_count(count: int) -> None:
    if not 1 <= count <= EXPLAIN_COUNT_MAX:
        raise InvalidValue(f"between 1 and {EXPLAIN_COUNT_MAX} decisions, not {count}")


# Records changes that users make to queues and services, among the decisions about them.
#
# `tidegate explain` shows them, so that operators see who changed what and when. Any node writes
# such
# a note, with the epoch of the present leader. If the leader changes in that moment, the note is
# lost; the change itself is not.


log = logging.getLogger(__name__)


async def record_scaling_override(
    session: Session, queue: str, before: Scaling | None, after: Scaling | None
) -> None:
    """Record a change of scaling settings, if anything has changed. The change is made already."""
    if before != after:
        otherwise = "Without it the queue would scale as before."
        await _record_override(session, queue, describe_scaling_change(before, after), otherwise)


async def record_policy_override(
    session: Session, queue: str, before: QueuePolicy, after: QueuePolicy
) -> None:
    """Record a change of the prefetch goal or of `paused`, if there is one."""
    if before.paused != after.paused:
        held = "It is paused: nothing is delivered until it is resumed."
        await _record_override(session, queue, held if after.paused else "It is resumed.", "")
    if before.prefetch != after.prefetch:
        reason = f"Prefetch {goal_told(after.prefetch)}, before {goal_told(before.prefetch)}."
        otherwise = "Without it consumers would have their prefetch as before."
        await _record_override(session, queue, reason, otherwise)


async def record_service_override(
    session: Session, service: str, before: ServiceOverride, after: ServiceOverride
) -> None:
    """Record a change of a service's override, if there is one."""
    if before != after:
        otherwise = "Without it the law would decide as before."
        reason = by_hand_told(before, after)
        reason = reason[0].upper() + reason[1:]
        await _record_override(session, decision_subject(service), reason, otherwise, loop="http")


async def _record_override(
    session: Session, queue: str, reason: str, otherwise: str, *, loop: str = "queue"
) -> None:
    context, recording = session.context, session.parts.recording
    who = session.authorizer.user or session.client_name or "a client without a name"
    change = Decision(
        at=context.clock.wall(),
        loop=loop,
        service=queue,
        law=OVERRIDE_LAW,
        rule=f"changed by {who}",
        reason=reason,
        otherwise=otherwise,
        by=who,
    )
    if recording is not None:
        recording.recorder.decision(
            change.loop,
            queue,
            change.law,
            at_s=change.at,
            inputs={},
            outputs={},
            action=change.rule,
            reason=change.reason,
        )
    try:
        _, epoch = await context.store.leader()
        await context.store.note_decision(queue, msgspec.json.encode(change), epoch)
    except TidegateError as failure:
        log.warning("who has changed %s is not written down: %s", queue, failure)


def describe_scaling_change(before: Scaling | None, after: Scaling | None) -> str:
    """Return the text of a change, in terms of the settings."""
    if after is None:
        return "It scales no more: a plain queue from now on."
    words = format_scaling_keys(after)
    if before is None:
        bounds = f"{after.replicas.min} to {after.replicas.max}"
        return f"It scales from now on: {bounds} replicas, policy {after.policy}."
    old = format_scaling_keys(before)
    return (
        ", ".join(
            f"{key} {_value(old[key])} → {_value(words[key])}"
            for key in words
            if words[key] != old[key]
        )
        + "."
    )


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return f"{value['min']} to {value['max']}"
    return f"{value:g}" if isinstance(value, float) else str(value)
