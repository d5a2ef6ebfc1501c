"""Transactions: puts and acknowledgements across queues, all or none.

Theory of operation

A transaction is one commit in the store, so one node must own all its queues. Leases cannot move to
another node. The node that has the leases therefore executes the transaction, and the queues that
are only put to are brought to it. Without acknowledgements, the owner of most of the queues
executes it. A session of another node forwards the packet.

The session finds the leases when the packet arrives, before anything waits: a moment later the same
consumer number may belong to a new consumer.

1. `QueueColocation.gather` brings all queues here and waits for room in them.
2. Without awaiting, `JointCommit` reserves the leases and takes ids for the puts.
3. `JointCommit.store` commits, and then settles the leases and admits the messages.

Failures:

- A queue is transient, a lease is lost, or a queue has no room: the transaction fails and nothing
  of it is done.
- A queue moves away meanwhile: the transaction is repeated a few times.
- The client sends it again: while it runs, both share its result. Later it is recognized by the
  batch marks of its puts and answered as done. If nothing is marked and its leases may be gone, it
  fails with `LeaseLost`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from tidegate.core.errors import InvalidValue, LeaseLost
from tidegate.node.batch import Batch
from tidegate.node.checks import check_transact
from tidegate.node.consumer import Consumer
from tidegate.node.joint_commit import JointCommit
from tidegate.node.meeting import Meeting, insist
from tidegate.node.once import OnceEach
from tidegate.node.relay import Relay
from tidegate.node.replica import Replica
from tidegate.node.settling import Ranges
from tidegate.wire.connection import Received
from tidegate.wire.packets.puts import PutMessageResponse
from tidegate.wire.packets.transactions import Transact, TransactResponse

if TYPE_CHECKING:
    from tidegate.node.server import Node
    from tidegate.node.session import Session

Held = list[tuple[Replica, Consumer, Ranges]]


def transact(session: Session, packet: Transact, event: Received) -> Awaitable[None] | None:
    """Run a transaction here, or forward it to the node that has the leases."""
    bodies = check_transact(packet, memoryview(event.body), session.limits)
    held: Held = []
    if packet.acks and not packet.resent:
        place = _place(session, packet)
        if isinstance(place, Relay):
            session.forward(place, packet, event.frame)
            return None
        held = place
    return _run(session, packet, [bytes(body) for body in bodies], held, event)


async def _run(
    session: Session, packet: Transact, bodies: list[bytes], held: Held, event: Received
) -> None:
    done = await session.node.transactions.run(packet, bodies, held, session.client_id)
    if isinstance(done, str):
        await session.forward_to(done, packet, event.frame)
        return
    session.answer(TransactResponse(done), event.packet_id)


def _place(session: Session, packet: Transact) -> Held | Relay:
    """Return the holders of the leases here, or the relay to the node that has them.

    Raises `LeaseLost` if there are none, and `InvalidValue` if several nodes have them.
    """
    held: Held = []
    relays: set[Relay] = set()
    for ack in packet.acks:
        replica = session.node.replicas.get(ack.queue_id)
        if replica is None:
            relay = session.routes.to(ack.queue_id)
            if relay is None:
                raise _lost(str(ack.queue_id))
            relays.add(relay)
            continue
        holder = replica.dispatch.holders.of(session, ack.consumer)
        if holder is None:
            raise _lost(replica.info.title)
        if not replica.info.durable:
            raise _transient(replica)
        held.append((replica, holder, ack.ranges))
    if len(relays) > 1 or (relays and held):
        raise InvalidValue(
            "the messages are of queues that different nodes own, and a transaction is one "
            "node's: move the queues together first, as with `tidegate move`"
        )
    return relays.pop() if relays else held


def _lost(queue: str) -> LeaseLost:
    return LeaseLost(f"no message of queue {queue} is held: nothing of the transaction was done")


def _transient(replica: Replica) -> InvalidValue:
    return InvalidValue(
        f"queue {replica.info.title} is transient: only what is stored can be part of a transaction"
    )


class Transactions:
    """The transactions of one node; equal requests share one result."""

    def __init__(self, node: Node, meeting: Meeting) -> None:
        self._node = node
        self._meeting = meeting
        self._once: OnceEach[list[PutMessageResponse] | str] = OnceEach()

    async def close(self) -> None:
        await self._once.close()

    async def run(
        self, packet: Transact, bodies: list[bytes], held: Held, sender: int
    ) -> list[PutMessageResponse] | str:
        """Return the ids of the puts, or the address of the node that should run it."""
        return await self._once.run(
            (packet.producer, packet.batch), lambda: self._run(packet, bodies, held, sender)
        )

    async def _run(
        self, packet: Transact, bodies: list[bytes], held: Held, sender: int
    ) -> list[PutMessageResponse] | str:
        if not held:
            elsewhere = await self._meeting.coordinator({put.queue_id for put in packet.puts})
            if elsewhere is not None:
                return elsewhere
        return await insist(lambda: self._try(packet, bodies, held, sender))

    async def _try(
        self, packet: Transact, bodies: list[bytes], held: Held, sender: int
    ) -> list[PutMessageResponse]:
        key = (packet.producer, packet.batch)
        replicas = await self._meeting.gather(
            {put.queue_id: (len(put.lengths), sum(put.lengths)) for put in packet.puts}, key
        )
        # From here to the commit nothing awaits, so no queue can leave.
        for replica in replicas.values():
            if not replica.info.durable:
                raise _transient(replica)
            if replica.intake.knows(*key):
                return []  # All or none: one queue that has it speaks for all
        if packet.acks and not held:
            raise LeaseLost(
                "nothing of the transaction was done, and it was asked for again when its messages "
                "may no longer have been held: begin anew with those that come"
            )
        commit = JointCommit(*key)
        answers: list[PutMessageResponse] = []
        try:
            for replica, holder, ranges in held:
                if replica.fenced or not replica.dispatch.holders.has(holder):
                    raise _lost(replica.info.title)
                commit.ack(replica, holder, ranges)
            for put, body in zip(packet.puts, bodies, strict=True):
                batch = Batch(
                    put,
                    body,
                    sender,
                    lambda first_id, ids, _: answers.append(PutMessageResponse(first_id, ids)),
                    _never_refused,
                )
                commit.put(replicas[put.queue_id], batch)
                if batch.is_stored:
                    batch.confirm_duplicate()
                else:
                    batch.confirm()
        except BaseException:
            commit.give_up()
            raise
        await commit.store(self._node.store)
        return answers


def _never_refused(error: Exception) -> None:
    raise AssertionError("a transaction is refused as a whole") from error
