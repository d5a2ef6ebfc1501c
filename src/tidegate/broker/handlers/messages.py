"""Handlers of packets about one queue, called at the node that owns it.

Each handler takes the session, the replica, the packet and its frame. It first checks the packet's
fields, so that a refused packet changes nothing. A handler that need not wait answers and returns
None; the others return an awaitable. An error that a handler raises becomes the answer.
`QUEUE_HANDLERS` maps each packet type to its handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.broker.batch import INT4_MAX, INT8_MAX, Batch, check_integers, check_put
from tidegate.broker.context import make_run
from tidegate.broker.dispatch import Consumer, PendingRead
from tidegate.broker.handlers import (
    RANGES_MAX,
    check_id,
    check_name,
    check_policy,
    check_prefetch,
    check_ranges,
    unknown_outcome,
)
from tidegate.broker.handlers.cluster import (
    LOGICAL_QUEUE_HANDLERS,
    at_every_replica,
    record_policy_override,
)
from tidegate.broker.replica import Replica
from tidegate.broker.settling import check_no_other_experiment, set_experiment_prefetch
from tidegate.core.errors import (
    ChangedMeanwhile,
    InvalidValue,
    LeaseLost,
    NoMessagesRetrieved,
    NotOwner,
    TidegateError,
    TooLarge,
    UniqueConstraint,
)
from tidegate.core.model import DeathReason, Order, policy_changed_meanwhile
from tidegate.core.runtime import NodeLimits
from tidegate.protocol.catalogue import DeleteQueue, PurgeQueue, PurgeQueueResponse, SetPolicy
from tidegate.protocol.cluster import SetOwner
from tidegate.protocol.connection import FRAME_BYTES_MAX, Frame
from tidegate.protocol.messages import (
    AcknowledgeIds,
    AcknowledgeIdsResponse,
    Extend,
    GetMessages,
    GetMessagesResponse,
    GetWaitingIds,
    GetWaitingIdsResponse,
    PutMessageResponse,
    PutMessages,
    ReadMessage,
    ReadMessageResponse,
    ReadResponse,
    ReadResponseResponse,
    Redrive,
    RedriveResponse,
    Return,
    SetConsumerPrefetch,
    SetPrefetch,
    Settle,
    SettleResponse,
    Subscribe,
    SubscribeResponse,
    Unsubscribe,
    Withdraw,
)
from tidegate.protocol.packet import Packet, Run, Success
from tidegate.queueing.lanes import NO_ID
from tidegate.queueing.queue import MessageSelector

if TYPE_CHECKING:
    from tidegate.broker.session import Session

BROWSE_COUNT_MAX = 10_000


def put(session: Session, replica: Replica, packet: PutMessages, frame: Frame) -> None:
    check_put(packet, len(frame.body), session.limits)
    packet_id = frame.packet_id

    def confirmed(first_id: int, ids: list[int] | None, stored_at: float) -> None:
        session.cycle.ready_at = stored_at
        session.answer(PutMessageResponse(first_id, ids), packet_id)

    replica.intake.put(
        Batch(
            packet,
            _owned_body(frame.body),
            session.client_id,
            confirmed,
            lambda error: session.fail(packet_id, error),
            session.cycle.arrived_at,
            session.cycle.parsed_at,
        )
    )


def _owned_body(body: bytes | bytearray | memoryview) -> bytes | memoryview:
    """Return a body that does not keep a much larger receive buffer in memory.

    A body that fills less than half of its buffer is copied.
    """
    if isinstance(body, memoryview) and 2 * len(body) >= memoryview(body.obj).nbytes:
        return body
    return bytes(body)


def read_message(session: Session, replica: Replica, packet: ReadMessage, frame: Frame) -> None:
    match = None
    if packet.sender is not None:
        check_id(packet.sender)
        match = MessageSelector(sender=packet.sender)
    _read(session, replica, packet, frame, packet.order, match, ReadMessageResponse)


def read_response(session: Session, replica: Replica, packet: ReadResponse, frame: Frame) -> None:
    _check_context(packet.context)
    match = MessageSelector(context=packet.context, asker=session.client_id)
    _read(session, replica, packet, frame, Order.OLDEST, match, ReadResponseResponse)


def _read(
    session: Session,
    replica: Replica,
    packet: ReadMessage | ReadResponse,
    frame: Frame,
    order: Order,
    match: MessageSelector | None,
    response: type[ReadMessageResponse | ReadResponseResponse],
) -> None:
    _refuse_at_alias(replica)
    _check_wait(packet.wait_ms, packet.lease_ms)

    def answer(run: Run, body: memoryview) -> None:
        session.resources.forget_reader(frame.packet_id)
        session.answer(response(run), frame.packet_id, [body] if len(body) else None)

    def miss(error: TidegateError) -> None:
        session.resources.forget_reader(frame.packet_id)
        session.fail(frame.packet_id, error)

    reader = PendingRead(
        session.client_id,
        order,
        match,
        None if packet.lease_ms is None else packet.lease_ms / 1e3,
        answer,
        miss,
        lambda: replica.dispatch.holders.reading(session),
    )
    session.resources.add_reader(frame.packet_id, reader, replica)
    replica.dispatch.readers.read(reader, packet.wait_ms / 1e3)


def withdraw(session: Session, replica: Replica, packet: Withdraw, frame: Frame) -> None:
    reader = session.resources.reader(packet.read_packet_id)
    if reader is not None:
        replica.dispatch.readers.drop(reader)
        reader.miss(NoMessagesRetrieved("the read was withdrawn"))
    session.answer(Success(), frame.packet_id)


def subscribe(session: Session, replica: Replica, packet: Subscribe, frame: Frame) -> None:
    if packet.consumer < 1:
        raise InvalidValue("consumers are numbered from 1")
    _refuse_at_alias(replica)
    check_prefetch(packet.prefetch, session.limits)
    if replica.dispatch.holders.of(session, packet.consumer) is not None:
        raise UniqueConstraint(f"consumer {packet.consumer} exists on this connection")
    session.resources.use(replica)
    lease_ms = int(replica.lease_s * 1e3)
    # Sent before the first delivery, so that the client knows the consumer when messages arrive.
    session.answer(SubscribeResponse(lease_ms), frame.packet_id)
    replica.dispatch.subscribe(
        session,
        packet.consumer,
        packet.prefetch,
        packet.order,
        packet.automatic,
        mine_only=packet.mine_only,
    )


def unsubscribe(session: Session, replica: Replica, packet: Unsubscribe, frame: Frame) -> None:
    if packet.consumer == 0 or not replica.dispatch.unsubscribe(session, packet.consumer):
        raise InvalidValue(f"no consumer {packet.consumer} on this connection")
    session.answer(Success(), frame.packet_id)


def settle(session: Session, replica: Replica, packet: Settle, frame: Frame) -> None:
    check_ranges(packet.ranges)
    holder = replica.dispatch.holders.of(session, packet.consumer)
    if not packet.confirm:
        session.cycle.unanswered()
        if holder is not None:
            replica.dispatch.settle(holder, packet.ranges, None)
        return
    if holder is None:
        raise _gone()

    def confirm(lost: int) -> None:
        if replica.fenced:
            session.fail(frame.packet_id, LeaseLost("the queue has moved to another node"))
        else:
            session.answer(SettleResponse(lost), frame.packet_id)

    replica.dispatch.settle(holder, packet.ranges, confirm)


def give_back(session: Session, replica: Replica, packet: Return, frame: Frame) -> None:
    check_ranges(packet.ranges)
    holder = _holder(session, replica, packet.consumer)
    if packet.delay_ms is not None:
        _check_wait(packet.delay_ms, None)
    _check_error(packet.error)
    lost = replica.dispatch.return_messages(holder, packet.ranges, packet)
    session.answer(SettleResponse(lost), frame.packet_id)


def extend(session: Session, replica: Replica, packet: Extend, frame: Frame) -> None:
    if packet.ranges is not None:
        check_ranges(packet.ranges)
    _check_wait(0, packet.lease_ms)
    holder = _holder(session, replica, packet.consumer)
    lease_s = None if packet.lease_ms is None else packet.lease_ms / 1e3
    lost = replica.dispatch.extend(holder, packet.ranges, lease_s)
    session.answer(SettleResponse(lost), frame.packet_id)


def _holder(session: Session, replica: Replica, consumer: int) -> Consumer:
    holder = replica.dispatch.holders.of(session, consumer)
    if holder is None:
        raise _gone()
    return holder


def _gone() -> LeaseLost:
    return LeaseLost("the subscription has ended, and its messages went back")


def set_prefetch(session: Session, replica: Replica, packet: SetPrefetch, frame: Frame) -> None:
    # Messages that the consumer holds stay with it: a client that drains finishes its work.
    check_prefetch(packet.prefetch, session.limits, at_least=0)
    holder = replica.dispatch.holders.of(session, packet.consumer)
    if holder is None or packet.consumer == 0:
        raise InvalidValue(f"no consumer {packet.consumer} on this connection")
    session.answer(Success(), frame.packet_id)
    replica.dispatch.set_prefetch(holder, packet.prefetch)


def set_consumer_prefetch(
    session: Session, replica: Replica, packet: SetConsumerPrefetch, frame: Frame
) -> None:
    check_prefetch(packet.prefetch, session.limits, at_least=0 if packet.trial else 1)
    found = [
        consumer
        for consumer in replica.dispatch.holders.consumers
        if consumer.target.client_id == packet.client_id and consumer.consumer == packet.consumer
    ]
    if not found:
        raise InvalidValue(f"client {packet.client_id} has no consumer {packet.consumer} here")
    if packet.prefetch and any(consumer.control is not None for consumer in found):
        raise InvalidValue(
            f"the prefetch of the consumers of {replica.info.title} is steered: set it by hand for "
            "all of them (`tidegate policy QUEUE --prefetch-manual N`), or steer no more "
            "(--prefetch-off)"
        )
    for consumer in found:
        check_no_other_experiment(consumer, session)
    for consumer in found:
        if packet.trial:
            session.resources.use(replica)
            set_experiment_prefetch(replica.dispatch, consumer, packet.prefetch, session)
        else:
            consumer.experiment = None
            consumer.target.prefetch_changed(consumer.consumer, packet.prefetch)
            replica.dispatch.set_prefetch(consumer, packet.prefetch)
    session.answer(Success(), frame.packet_id)


async def browse(session: Session, replica: Replica, packet: GetMessages, frame: Frame) -> None:
    last_id = _checked_last_id(packet.limit, packet.last_id)
    runs: list[Run] = []
    bodies: list[memoryview | bytes] = []
    room = FRAME_BYTES_MAX // 2
    limit = min(packet.limit, BROWSE_COUNT_MAX)
    first_id = min(max(packet.first_id, 0), NO_ID)
    spans, more_from = await replica.by_id.browse(limit, first_id, last_id)
    for span in spans:
        body = span.segment.body(span.low, span.high)
        room -= len(body)
        if room < 0 and runs:
            more_from = span.first_id
            break
        runs.append(make_run(span, tag=0))
        bodies.append(body)
    if replica.info.elastic:
        await _browse_replicas(session, replica, packet, runs, bodies)
    session.answer(GetMessagesResponse(runs, more_from), frame.packet_id, bodies)


async def _browse_replicas(
    session: Session,
    alias: Replica,
    packet: GetMessages,
    runs: list[Run],
    bodies: list[memoryview | bytes],
) -> None:
    """Add the waiting messages of a logical queue's replicas, up to the limits."""
    limit = min(packet.limit, BROWSE_COUNT_MAX) - sum(len(run.lengths) for run in runs)
    room = FRAME_BYTES_MAX // 2 - sum(map(len, bodies))

    async def here(replica: Replica) -> GetMessagesResponse:
        last_id = _checked_last_id(packet.limit, packet.last_id)
        spans, _ = await replica.by_id.browse(max(limit, 1), max(packet.first_id, 0), last_id)
        mine = [span.segment.body(span.low, span.high) for span in spans]
        bodies_here.append(b"".join(mine))
        return GetMessagesResponse([make_run(span, tag=0) for span in spans])

    bodies_here: list[bytes] = []
    request = GetMessages(0, max(limit, 1), packet.first_id, packet.last_id)
    answers = await at_every_replica(
        session, alias, here, lambda queue_id: msgspec.structs.replace(request, queue_id=queue_id)
    )
    local = iter(bodies_here)
    for answer, remote in answers:
        body = memoryview(remote) if isinstance(remote, memoryview) else memoryview(next(local))
        for run in answer.runs:
            size = sum(run.lengths)
            if limit <= 0 or room < size:
                return
            runs.append(run)
            bodies.append(body[:size])
            body = body[size:]
            limit -= len(run.lengths)
            room -= size


def _checked_last_id(limit: int, last_id: int | None) -> int:
    if limit < 1:
        raise InvalidValue("limit must be at least 1")
    return NO_ID if last_id is None else min(max(last_id, 0), NO_ID)


async def waiting_ids(
    session: Session, replica: Replica, packet: GetWaitingIds, frame: Frame
) -> None:
    last_id = _checked_last_id(packet.limit, packet.last_id)
    _refuse_at_alias(replica)
    # Read before the messages are listed: messages that arrive meanwhile may be missing.
    below_id = replica.intake.ids.next_id
    ranges = await replica.by_id.waiting_ids(packet.limit, last_id)
    session.answer(GetWaitingIdsResponse(ranges, below_id), frame.packet_id)


async def acknowledge_ids(
    session: Session, replica: Replica, packet: AcknowledgeIds, frame: Frame
) -> None:
    _check_id_ranges(packet.ranges)
    _refuse_at_alias(replica)
    count = await replica.by_id.acknowledge(packet.ranges)
    session.answer(AcknowledgeIdsResponse(count), frame.packet_id)


async def purge(session: Session, replica: Replica, packet: PurgeQueue, frame: Frame) -> None:
    count = await replica.purge()
    if replica.info.elastic:

        async def here(one: Replica) -> PurgeQueueResponse:
            return PurgeQueueResponse(await one.purge())

        answers = await at_every_replica(session, replica, here, PurgeQueue)
        count += sum(answer.count for answer, _ in answers)
    session.answer(PurgeQueueResponse(count), frame.packet_id)


async def delete(session: Session, replica: Replica, packet: DeleteQueue, frame: Frame) -> None:
    if replica.info.alias_id:
        # Its messages would be lost, and the topology would still name the replica.
        raise InvalidValue(
            f"{replica.info.title} cannot be deleted alone: have fewer replicas "
            "(`tidegate scale`), or delete the queue"
        )
    async with unknown_outcome(session.context.store):
        await session.parts.ownership.delete_queue(replica)
    session.answer(Success(), frame.packet_id)


async def set_owner(session: Session, replica: Replica, packet: SetOwner, frame: Frame) -> None:
    await session.parts.ownership.transfer_ownership(replica, packet.member_id)
    session.answer(Success(), frame.packet_id)


async def set_policy(session: Session, replica: Replica, packet: SetPolicy, frame: Frame) -> None:
    if replica.info.alias_id and not session.authorizer.is_node:
        raise InvalidValue(
            f"{replica.info.title} has the policy of that queue: set it for the queue as a whole"
        )
    check_policy(packet.policy, replica.info.name, session.limits)
    before = replica.context.policy
    # A repeated request after a lost answer: the policy is set already.
    expected = None if before == packet.policy else packet.before
    try:
        await replica.set_policy(packet.policy, expected)
    except ChangedMeanwhile:
        raise policy_changed_meanwhile(replica.info.name) from None
    if not session.authorizer.is_node:
        await record_policy_override(session, replica.info.name, before, packet.policy)
    if replica.info.elastic:

        async def here(one: Replica) -> Success:
            await one.set_policy(packet.policy)
            return Success()

        await at_every_replica(
            session, replica, here, lambda queue_id: SetPolicy(queue_id, packet.policy)
        )
    session.answer(Success(), frame.packet_id)


async def redrive(session: Session, replica: Replica, packet: Redrive, frame: Frame) -> None:
    _check_redrive(packet, session.limits)
    count = await session.parts.dead_letters.redrive(replica, packet, session.authorizer)
    session.answer(RedriveResponse(count), frame.packet_id)


# Checks of packets and queues.


ERROR_LENGTH_MAX = 4000


def _refuse_at_alias(replica: Replica) -> None:
    """Raise `NotOwner` for a queue whose messages are at its replicas."""
    if replica.info.elastic:
        raise NotOwner(f"queue {replica.info.title} is spread over replicas: join it")


def _check_context(context: int) -> None:
    check_integers((context,), INT8_MAX)


def _check_wait(wait_ms: int, lease_ms: int | None) -> None:
    if not 0 <= wait_ms <= INT4_MAX or not 0 < (lease_ms or 1) <= INT4_MAX:
        raise InvalidValue("waits and leases are counted in milliseconds, up to 24 days")


def _check_id_ranges(ranges: list[tuple[int, int]]) -> None:
    """Check ranges of message ids, which count from 1."""
    if len(ranges) > RANGES_MAX:
        raise TooLarge(f"a packet names at most {RANGES_MAX} ranges of ids, not {len(ranges)}")
    for first, last in ranges:
        if not 1 <= first <= last <= INT8_MAX:
            raise InvalidValue(f"no ids run from {first} to {last}")


def _check_error(error: str | None) -> None:
    if error is not None and (len(error) > ERROR_LENGTH_MAX or "\x00" in error):
        raise InvalidValue(f"an error has at most {ERROR_LENGTH_MAX} characters, none of them NUL")


def _check_redrive(packet: Redrive, limits: NodeLimits) -> None:
    if packet.to is not None:
        check_name(packet.to, limits)
    if packet.limit is not None and packet.limit < 1:
        raise InvalidValue(f"limit must be at least 1, not {packet.limit}")
    if packet.reason is not None and packet.reason not in list(DeathReason):
        raise InvalidValue(f"reason is one of {', '.join(DeathReason)}, not {packet.reason!r}")


# The table of handlers.


# Called with the session, the replica, the packet, and the frame in which it came.
QueueHandler = Callable[["Session", Replica, Any, Frame], Awaitable[None] | None]
QUEUE_HANDLERS: dict[type[Packet], QueueHandler] = {
    PutMessages: put,
    ReadMessage: read_message,
    ReadResponse: read_response,
    Withdraw: withdraw,
    Subscribe: subscribe,
    Unsubscribe: unsubscribe,
    Settle: settle,
    Return: give_back,
    Extend: extend,
    SetPrefetch: set_prefetch,
    SetConsumerPrefetch: set_consumer_prefetch,
    GetMessages: browse,
    GetWaitingIds: waiting_ids,
    AcknowledgeIds: acknowledge_ids,
    PurgeQueue: purge,
    DeleteQueue: delete,
    SetOwner: set_owner,
    SetPolicy: set_policy,
    Redrive: redrive,
    **LOGICAL_QUEUE_HANDLERS,
}
