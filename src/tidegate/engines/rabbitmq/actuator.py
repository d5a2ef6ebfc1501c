"""The actuator of RabbitMQ: actions in, changes of bindings, queues and messages out.

Theory of operation.

`RabbitmqActuator` executes the actions for one elastic queue. It runs in the process that holds the
queue's lock, and uses that process's one connection. If the connection is lost, so is the lock, and
every call raises Unavailable.

The stored topology (topology.py) is written before each step on the broker:

    AddReplica    store: starting → create the replica's queue and its holders queue
    `serve`       store: serving; the next SetShares gives it messages
    SetShares     store: new and previous weights → rebind each queue whose weight has changed
    Drain         store: draining; SetShares then lowers its share, and removes its binding with
                  the last of it. Nothing new arrives, and its consumers continue.
    `release_consumers`
                  store: leaving; its consumers stop as soon as they hold none of its messages
    Retire        delete the queue if it is empty, unused and without holders → store: gone

Invariants:

- Every step can be repeated. A controller that was killed halfway leaves a topology that says what
  may be unfinished, and `take_over` of the next controller completes it.
- A replica's queue is deleted only when no consumer may hold a message of it. An empty queue does
  not prove that: its messages may be unacknowledged, and the broker would delete them too. So each
  Tidegate consumer also consumes from the holders queue, which never has a message, until it has
  settled its last message.
- Numbers of replicas are never reused.

Failures: a refusal by the broker is returned as a text, and the law decides again in the next
period.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from aiormq import spec
from aiormq.abc import AbstractChannel, DeliveredMessage

from tidegate.core.decisions import (
    Action,
    AddReplica,
    CancelDrain,
    CancelPending,
    Drain,
    Exchange,
    Migrate,
    Retire,
    SetShares,
)
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.runtime import crash_point
from tidegate.core.topology import ALIAS, ReplicaState, replica_name
from tidegate.engines.rabbitmq.message import marked_resent
from tidegate.engines.rabbitmq.topology import (
    FEED_EXCHANGE,
    LEDGER_ARGUMENTS,
    ControllerConnection,
    ElasticReplica,
    ElasticTopology,
    NameConflict,
    holders_name,
    ledger_name,
    read_topology,
    rest_name,
    translating_refusals,
    weights_of,
    write_topology,
)

# Maximum duration of one transfer, a part of the period.
_MOVE_S = 1.0
_POINTS: Mapping[type[Action], str] = {
    AddReplica: "replica-added",
    SetShares: "shares",
    Drain: "drain",
    CancelDrain: "drain",
    Retire: "retire",
    Exchange: "exchange-order",
    Migrate: "migrate",
}


class RabbitmqActuator:
    """Executes the actions that were decided for one elastic queue, for the lock's holder."""

    def __init__(self, link: ControllerConnection, queue: str) -> None:
        self._link = link
        self._queue = queue
        self._topology: ElasticTopology | None = None
        # Messages moved since `take_moved` was last called, by number of the target.
        self._moved: dict[int, int] = {}

    @property
    def topology(self) -> ElasticTopology:
        assert self._topology is not None, "not taken over"
        return self._topology

    async def take_over(self, arguments: Mapping[str, Any]) -> ElasticTopology:
        """Make the queue elastic, or continue where another controller stopped.

        `arguments` are the arguments of the queue, if it is new, and of its replicas.
        """
        found = self._topology = await make_alias(self._link, self._queue, arguments)
        for one in found.replicas:
            if one.state is ReplicaState.STARTING:
                await self._make_queues(one.number)
        await bind_as_written(self._link, found)
        # Publish the topology to clients that have listened since before this controller.
        await self._write(found)
        return self.topology

    async def make_plain(self) -> None:
        """Make the queue plain again; its replicas must be gone."""
        await end_alias(self._link, msgspec.structs.replace(self.topology, is_over=True))

    def take_moved(self) -> dict[int, int]:
        """Return the messages moved since the previous call, by number of the target.

        The broker counts them as published, and they are not new.
        """
        moved, self._moved = self._moved, {}
        return moved

    async def execute(self, action: Action) -> str | None:
        """Execute one action; return None if it was done, else a sentence that says why not.

        Raises Unavailable if the connection, and with it the lock, is lost.
        """
        try:
            if isinstance(action, CancelPending):
                return None  # RabbitMQ replicas wait for no machine
            point = _POINTS[type(action)]
            crash_point(f"before-{point}")
            failure = await self._do(action)
            if failure is None:
                crash_point(f"after-{point}")
            return failure
        except Unavailable:
            # The connection is lost, and with it the lock.
            raise
        except TidegateError as failure:
            return str(failure)

    async def _do(self, action: Action) -> str | None:
        match action:
            case AddReplica(count):
                for _ in range(count):
                    await self._add()
            case SetShares(shares):
                await self._set_shares(shares)
            case Drain(number):
                return await self._set_state(number, ReplicaState.DRAINING)
            case CancelDrain(number):
                return await self._set_state(number, ReplicaState.SERVING)
            case Retire(number):
                return await self._retire(number)
            case Exchange(source, target, count):
                return await self._exchange(source, target, count)
            case Migrate():
                return "on RabbitMQ consumers are at every replica already, or belong to one"
            case _:
                raise AssertionError(f"{action} is not about an elastic queue")
        return None

    async def serve(self, number: int) -> None:
        """Mark a started replica as serving; it gets messages with the next SetShares."""
        crash_point("before-serving")
        await self._set_state(number, ReplicaState.SERVING)
        crash_point("after-serving")

    async def release_consumers(self, number: int) -> None:
        """Mark a draining, empty replica as leaving, so that its consumers stop."""
        one = self.topology.replica(number)
        if one is not None and not one.is_leaving:
            leaving = msgspec.structs.replace(one, is_leaving=True)
            await self._write(self.topology.with_replica(leaving))
            crash_point("after-let-go")

    async def remove_replica(self, number: int) -> None:
        """Remove a replica whose queue is gone, however it was deleted."""
        await self._clear_holders(number)
        await self._write(self.topology.without(number))

    async def _write(self, topology: ElasticTopology) -> None:
        self._topology = await write_topology(await self._link.channel(), topology)

    async def _add(self) -> None:
        topology = self.topology
        number = topology.next_number
        noted = topology.with_replica(ElasticReplica(number=number))
        await self._write(msgspec.structs.replace(noted, next_number=number + 1))
        crash_point("after-replica-noted")
        await self._make_queues(number)

    async def _make_queues(self, number: int) -> None:
        # Create the holders queue first, so that every consumer of the replica can register there.
        await self._link.declare_queue(holders_name(self._queue, number), {})
        await self._link.declare_queue(replica_name(self._queue, number), self.topology.arguments)

    async def _set_shares(self, shares: Mapping[int, float]) -> None:
        weights = weights_of(shares)
        topology = self.topology
        if all(one.weight == weights.get(one.number, 0) for one in topology.replicas):
            return
        await self._write(topology.weighted(weights))
        # Raise weights before lowering others, so that the ring is never empty if that is
        # avoidable.
        changed = [one for one in self.topology.replicas if one.weight != one.weight_before]
        for one in sorted(changed, key=lambda one: one.weight_before - one.weight):
            await rebind(self._link, self._queue, one)

    async def _set_state(self, number: int, state: ReplicaState) -> str | None:
        one = self.topology.replica(number)
        if one is None:
            return f"replica {number} is gone"
        changed = msgspec.structs.replace(one, state=state, is_leaving=False)
        await self._write(self.topology.with_replica(changed))
        return None

    async def _exchange(self, source: int, target: int, count: int) -> str | None:
        for number in (source, target):
            if number != ALIAS and self.topology.replica(number) is None:
                return f"replica {number} is gone"
        moved = await move_messages(
            await self._link.channel(), self._name(source), self._name(target), count, _MOVE_S
        )
        self._moved[target] = self._moved.get(target, 0) + moved
        return None

    def _name(self, number: int) -> str:
        return self._queue if number == ALIAS else replica_name(self._queue, number)

    async def _retire(self, number: int) -> str | None:
        one = self.topology.replica(number)
        if one is None:
            return None
        if not one.is_leaving or one.weight:
            return f"the consumers of replica {number} have not been told yet"
        name = replica_name(self._queue, number)
        if held := await self.holders(number):
            return f"{held} consumers may still hold messages of replica {number}"
        length = await self._link.length(name)
        if length is not None:
            if length.ready:
                return f"{length.ready} messages are still in replica {number}"
            if length.consumers:
                return f"{length.consumers} consumers are still at replica {number}"
            try:
                # Quorum queues do not support conditional deletion; the check just made has to
                # suffice.
                await self._link.delete_queue(name, conditions=self.topology.is_classic)
            except NameConflict as came:
                return f"something came to replica {number} at the last moment: {came}"
            crash_point("after-replica-ended")
        await self.remove_replica(number)
        return None

    async def holders(self, number: int) -> int:
        """Return the number of Tidegate consumers that may hold messages of a replica."""
        length = await self._link.length(holders_name(self._queue, number))
        return 0 if length is None else length.consumers

    async def _clear_holders(self, number: int) -> None:
        name = holders_name(self._queue, number)
        if await self._link.length(name) is not None:
            await self._link.delete_queue(name, conditions=False)


# Transfer of waiting messages between two queues of a broker.
#
#     basic.get → basic.publish to the target, mandatory → its confirm → basic.ack
#
# A message that the target refuses is requeued at once. If the process is killed in between, a
# message is in both queues, and never in neither.
#
# The copy carries the header `x-tidegate-resent` from the start, because the original may be
# delivered first. Tidegate consumers report a message with this header as redelivered. All other
# properties stay, except two that the broker would act on again: the list of further queues (CC)
# and the claimed publisher (user_id).


# Messages under way at a time.
_ABREAST = 100
_MOVE_ANSWER_S = 10.0


async def move_messages(
    channel: AbstractChannel, source: str, target: str, count: int, within_s: float
) -> int:
    """Move at most `count` messages within about `within_s` seconds; return how many were moved."""
    deadline = time.monotonic() + within_s
    moved = 0
    while moved < count and time.monotonic() < deadline:
        taken = await _taken(channel, source, min(count - moved, _ABREAST))
        if not taken:
            break
        failures = await asyncio.gather(
            *(_publish(channel, message, target) for message in taken), return_exceptions=True
        )
        crash_point("before-move")
        with translating_refusals(f"queue {target!r}"):
            for message, failure in zip(taken, failures, strict=True):
                tag = message.delivery_tag or 0
                if failure is None:
                    await channel.basic_ack(tag)
                    moved += 1
                elif not channel.is_closed:
                    await channel.basic_nack(tag, requeue=True)
            for failure in failures:
                if failure is not None:
                    raise failure
    return moved


async def _taken(channel: AbstractChannel, source: str, count: int) -> list[DeliveredMessage]:
    with translating_refusals(f"queue {source!r}"):
        found = await asyncio.gather(
            *(channel.basic_get(source, timeout=_MOVE_ANSWER_S) for _ in range(count))
        )
    return [one for one in found if isinstance(one.delivery, spec.Basic.GetOk)]


async def _publish(channel: AbstractChannel, message: DeliveredMessage, target: str) -> None:
    properties = message.header.properties
    headers = properties.headers or {}
    properties.headers = {name: value for name, value in headers.items() if name != "CC"}
    properties.user_id = None
    await channel.basic_publish(
        message.body,
        routing_key=target,
        properties=marked_resent(properties),
        mandatory=True,
        timeout=_MOVE_ANSWER_S,
    )


# The exchange that producers publish to: its creation, its bindings, and its end.
#
# The order of creation is: the fallback for messages without a replica, the exchange, the topology
# queue. A failure in between leaves nothing that loses messages.
#
# The exchange is never deleted, since producers may keep publishing to it. Without replicas it
# routes everything to the plain queue.
#
# `rebind` brings a binding to the stored state from any other state. It removes the binding with
# the
# previous weight and the one with the wanted weight, then binds with the wanted weight. This also
# repairs a ring after manual changes: if a queue was bound twice and one binding is removed,
# RabbitMQ
# leaves the queue without any part of the ring.


_ALIAS_ANSWER_S = 10.0
HASH = "x-consistent-hash"


async def make_alias(
    link: ControllerConnection, queue: str, arguments: Mapping[str, Any]
) -> ElasticTopology:
    """Make the queue elastic, or return its stored topology; safe to repeat.

    `arguments` are the arguments of the queue, if it does not exist, and of its replicas. Raises
    InvalidValue if another exchange has the queue's name.
    """
    if await link.length(queue) is None:
        await link.declare_queue(queue, dict(arguments))
    channel = await link.channel()
    with translating_refusals(f"queue {queue!r}"):
        await channel.exchange_declare(
            rest_name(queue), exchange_type="fanout", durable=True, timeout=_ALIAS_ANSWER_S
        )
        await channel.queue_bind(queue, rest_name(queue), timeout=_ALIAS_ANSWER_S)
        await channel.exchange_declare(
            FEED_EXCHANGE, exchange_type="direct", durable=True, timeout=_ALIAS_ANSWER_S
        )
    try:
        with translating_refusals(f"exchange {queue!r}"):
            await channel.exchange_declare(
                queue,
                exchange_type=HASH,
                durable=True,
                arguments={"alternate-exchange": rest_name(queue)},
                timeout=_ALIAS_ANSWER_S,
            )
    except NameConflict as other:
        raise InvalidValue(
            f"there is an exchange {queue} already, and it is no alias of ours ({other}): it has "
            "to go, or the queue needs another name"
        ) from other
    await link.declare_queue(ledger_name(queue), dict(LEDGER_ARGUMENTS))
    found = await read_topology(await link.channel(), queue, is_empty_fine=True)
    if found is None:
        is_classic = await link.is_classic(queue)
        found = ElasticTopology(
            queue=queue, version=0, is_classic=is_classic, arguments=_of_replicas(arguments)
        )
        return await write_topology(await link.channel(), found)
    # A controller may have been stopped while it made the queue plain, before it deleted the
    # topology queue.
    return msgspec.structs.replace(found, is_over=False)


def _of_replicas(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the queue's arguments without those that let a replica expire."""
    return {name: value for name, value in arguments.items() if name != "x-expires"}


async def bind_as_written(link: ControllerConnection, topology: ElasticTopology) -> None:
    """Bring all bindings to the stored topology; replicas without a queue are skipped."""
    for one in topology.replicas:
        if await link.length(replica_name(topology.queue, one.number)) is not None:
            await rebind(link, topology.queue, one)


async def rebind(link: ControllerConnection, queue: str, replica: ElasticReplica) -> None:
    """Remove a replica's binding and bind it with its weight.

    For one round trip the other replicas get its part of the messages.
    """
    name = replica_name(queue, replica.number)
    for weight in {replica.weight_before, replica.weight} - {0}:
        await link.unbind(name, queue, weight)
    crash_point("after-unbind")
    if replica.weight:
        await link.bind(name, queue, replica.weight)


async def end_alias(link: ControllerConnection, topology: ElasticTopology) -> None:
    """Make the queue plain again: publish that to all clients, and delete the topology queue.

    The exchange stays.
    """
    assert not topology.replicas, "replicas are drained first"
    queue = topology.queue
    await write_topology(await link.channel(), topology)
    await link.delete_queue(ledger_name(queue), conditions=False)
