"""What a client may ask about a queue, at the replica that serves it: a function per packet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import (
    InvalidValue,
    LeaseLost,
    NoMessagesRetrieved,
    TidegateError,
    UniqueConstraint,
)
from tidegate.core.model import Order
from tidegate.node.batch import Batch
from tidegate.node.checks import (
    check_context,
    check_error,
    check_id,
    check_id_ranges,
    check_policy,
    check_prefetch,
    check_put,
    check_ranges,
    check_redrive,
    check_wait,
)
from tidegate.node.consumer import Consumer, Reader
from tidegate.node.replica import Replica
from tidegate.node.runs import run_of
from tidegate.queueing.lane import NO_ID
from tidegate.queueing.queue import Match
from tidegate.wire import packets as w
from tidegate.wire.connection import FRAME_BYTES_MAX
from tidegate.wire.frames import Frame

if TYPE_CHECKING:
    from tidegate.node.session import Session

BROWSE_COUNT_MAX = 10_000


def put(session: Session, replica: Replica, packet: w.PutMessages, frame: Frame) -> None:
    check_put(packet, len(frame.body), session.limits)
    packet_id = frame.packet_id

    def confirmed(first_id: int, ids: list[int] | None, stored_at: float) -> None:
        session.cycle.ready_at = stored_at
        session.answer(w.PutMessageResponse(first_id, ids), packet_id)

    replica.intake.put(
        Batch(
            packet,
            _kept(frame.body),
            session.client_id,
            confirmed,
            lambda error: session.fail(packet_id, error),
            session.cycle.arrived_at,
            session.cycle.parsed_at,
        )
    )


def _kept(body: bytes | bytearray | memoryview) -> bytes | memoryview:
    """A body to keep: as it is when it fills its buffer, else copied out to free the rest."""
    if isinstance(body, memoryview) and 2 * len(body) >= memoryview(body.obj).nbytes:
        return body
    return bytes(body)


def read_message(session: Session, replica: Replica, packet: w.ReadMessage, frame: Frame) -> None:
    match = None
    if packet.sender is not None:
        check_id(packet.sender)
        match = Match(sender=packet.sender)
    _read(session, replica, packet, frame, packet.order, match, w.ReadMessageResponse)


def read_response(session: Session, replica: Replica, packet: w.ReadResponse, frame: Frame) -> None:
    check_context(packet.context)
    match = Match(context=packet.context, asker=session.client_id)
    _read(session, replica, packet, frame, Order.OLDEST, match, w.ReadResponseResponse)


def _read(
    session: Session,
    replica: Replica,
    packet: w.ReadMessage | w.ReadResponse,
    frame: Frame,
    order: Order,
    match: Match | None,
    response: type[w.ReadMessageResponse | w.ReadResponseResponse],
) -> None:
    check_wait(packet.wait_ms, packet.lease_ms)

    def answer(run: w.Run, body: memoryview) -> None:
        session.forget_reader(frame.packet_id)
        session.answer(response(run), frame.packet_id, [body] if len(body) else None)

    def miss(error: TidegateError) -> None:
        session.forget_reader(frame.packet_id)
        session.fail(frame.packet_id, error)

    reader = Reader(
        session.client_id,
        order,
        match,
        None if packet.lease_ms is None else packet.lease_ms / 1e3,
        answer,
        miss,
        lambda: replica.dispatch.reading_holder(session),
    )
    session.remember_reader(frame.packet_id, reader, replica)
    replica.dispatch.read(reader, packet.wait_ms / 1e3)


def withdraw(session: Session, replica: Replica, packet: w.Withdraw, frame: Frame) -> None:
    reader = session.reader(packet.read_packet_id)
    if reader is not None:
        replica.dispatch.drop_reader(reader)
        reader.miss(NoMessagesRetrieved("the read was withdrawn"))
    session.answer(w.Success(), frame.packet_id)


def subscribe(session: Session, replica: Replica, packet: w.Subscribe, frame: Frame) -> None:
    if packet.consumer < 1:
        raise InvalidValue("consumers are numbered from 1")
    check_prefetch(packet.prefetch, session.limits)
    if replica.dispatch.holder(session, packet.consumer) is not None:
        raise UniqueConstraint(f"consumer {packet.consumer} exists on this connection")
    session.uses(replica)
    lease_ms = int(replica.lease_s * 1e3)
    # Before the first delivery, so that the client knows what it belongs to.
    session.answer(w.SubscribeResponse(lease_ms), frame.packet_id)
    replica.dispatch.subscribe(
        session, packet.consumer, packet.prefetch, packet.order, packet.automatic
    )


def unsubscribe(session: Session, replica: Replica, packet: w.Unsubscribe, frame: Frame) -> None:
    if packet.consumer == 0 or not replica.dispatch.unsubscribe(session, packet.consumer):
        raise InvalidValue(f"no consumer {packet.consumer} on this connection")
    session.answer(w.Success(), frame.packet_id)


def settle(session: Session, replica: Replica, packet: w.Settle, frame: Frame) -> None:
    check_ranges(packet.ranges)
    holder = replica.dispatch.holder(session, packet.consumer)
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
            session.answer(w.SettleResponse(lost), frame.packet_id)

    replica.dispatch.settle(holder, packet.ranges, confirm)


def give_back(session: Session, replica: Replica, packet: w.Return, frame: Frame) -> None:
    check_ranges(packet.ranges)
    holder = _holder(session, replica, packet.consumer)
    if packet.delay_ms is not None:
        check_wait(packet.delay_ms, None)
    check_error(packet.error)
    lost = replica.dispatch.give_back(holder, packet.ranges, packet)
    session.answer(w.SettleResponse(lost), frame.packet_id)


def extend(session: Session, replica: Replica, packet: w.Extend, frame: Frame) -> None:
    if packet.ranges is not None:
        check_ranges(packet.ranges)
    check_wait(0, packet.lease_ms)
    holder = _holder(session, replica, packet.consumer)
    lease_s = None if packet.lease_ms is None else packet.lease_ms / 1e3
    lost = replica.dispatch.extend(holder, packet.ranges, lease_s)
    session.answer(w.SettleResponse(lost), frame.packet_id)


def _holder(session: Session, replica: Replica, consumer: int) -> Consumer:
    holder = replica.dispatch.holder(session, consumer)
    if holder is None:
        raise _gone()
    return holder


def _gone() -> LeaseLost:
    return LeaseLost("the subscription has ended, and its messages went back")


def set_prefetch(session: Session, replica: Replica, packet: w.SetPrefetch, frame: Frame) -> None:
    # Nothing more: who drains wants to keep what it works on.
    check_prefetch(packet.prefetch, session.limits, at_least=0)
    holder = replica.dispatch.holder(session, packet.consumer)
    if holder is None or packet.consumer == 0:
        raise InvalidValue(f"no consumer {packet.consumer} on this connection")
    session.answer(w.Success(), frame.packet_id)
    replica.dispatch.set_prefetch(holder, packet.prefetch)


def set_consumer_prefetch(
    session: Session, replica: Replica, packet: w.SetConsumerPrefetch, frame: Frame
) -> None:
    check_prefetch(packet.prefetch, session.limits)
    found = [
        consumer
        for consumer in replica.dispatch.consumers
        if consumer.outlet.client_id == packet.client_id and consumer.consumer == packet.consumer
    ]
    if not found:
        raise InvalidValue(f"client {packet.client_id} has no consumer {packet.consumer} here")
    for consumer in found:
        consumer.outlet.prefetch_changed(consumer.consumer, packet.prefetch)
        replica.dispatch.set_prefetch(consumer, packet.prefetch)
    session.answer(w.Success(), frame.packet_id)


async def browse(session: Session, replica: Replica, packet: w.GetMessages, frame: Frame) -> None:
    last_id = _checked_last_id(packet.limit, packet.last_id)
    runs: list[w.Run] = []
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
        runs.append(run_of(span, tag=0))
        bodies.append(body)
    session.answer(w.GetMessagesResponse(runs, more_from), frame.packet_id, bodies)


def _checked_last_id(limit: int, last_id: int | None) -> int:
    if limit < 1:
        raise InvalidValue("limit must be at least 1")
    return NO_ID if last_id is None else min(max(last_id, 0), NO_ID)


async def waiting_ids(
    session: Session, replica: Replica, packet: w.GetWaitingIds, frame: Frame
) -> None:
    last_id = _checked_last_id(packet.limit, packet.last_id)
    # Before what waits is looked at: what comes meanwhile may be on the list or not.
    below_id = replica.intake.ids_given_below
    ranges = await replica.by_id.waiting_ids(packet.limit, last_id)
    session.answer(w.GetWaitingIdsResponse(ranges, below_id), frame.packet_id)


async def acknowledge_ids(
    session: Session, replica: Replica, packet: w.AcknowledgeIds, frame: Frame
) -> None:
    check_id_ranges(packet.ranges)
    count = await replica.by_id.acknowledge(packet.ranges)
    session.answer(w.AcknowledgeIdsResponse(count), frame.packet_id)


async def purge(session: Session, replica: Replica, packet: w.PurgeQueue, frame: Frame) -> None:
    session.answer(w.PurgeQueueResponse(await replica.purge()), frame.packet_id)


async def delete(session: Session, replica: Replica, packet: w.DeleteQueue, frame: Frame) -> None:
    await session.node.ownership.delete_queue(replica)
    session.answer(w.Success(), frame.packet_id)


async def set_owner(session: Session, replica: Replica, packet: w.SetOwner, frame: Frame) -> None:
    await session.node.ownership.hand_over(replica, packet.member_id)
    session.answer(w.Success(), frame.packet_id)


async def set_policy(session: Session, replica: Replica, packet: w.SetPolicy, frame: Frame) -> None:
    check_policy(packet.policy, replica.info.name, session.limits)
    await replica.set_policy(packet.policy)
    session.answer(w.Success(), frame.packet_id)


async def redrive(session: Session, replica: Replica, packet: w.Redrive, frame: Frame) -> None:
    check_redrive(packet, session.limits)
    count = await session.node.dead_letters.redrive(replica, packet, session.guard)
    session.answer(w.RedriveResponse(count), frame.packet_id)


# The session, the replica, the packet, and the frame it came in.
QueueVerb = Callable[["Session", Replica, Any, Frame], Awaitable[None] | None]
QUEUE_VERBS: dict[type[w.Packet], QueueVerb] = {
    w.PutMessages: put,
    w.ReadMessage: read_message,
    w.ReadResponse: read_response,
    w.Withdraw: withdraw,
    w.Subscribe: subscribe,
    w.Unsubscribe: unsubscribe,
    w.Settle: settle,
    w.Return: give_back,
    w.Extend: extend,
    w.SetPrefetch: set_prefetch,
    w.SetConsumerPrefetch: set_consumer_prefetch,
    w.GetMessages: browse,
    w.GetWaitingIds: waiting_ids,
    w.AcknowledgeIds: acknowledge_ids,
    w.PurgeQueue: purge,
    w.DeleteQueue: delete,
    w.SetOwner: set_owner,
    w.SetPolicy: set_policy,
    w.Redrive: redrive,
}
