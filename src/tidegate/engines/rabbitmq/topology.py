"""Elastic queues on RabbitMQ: their names, their topology, and shares as binding weights.

Theory of operation.

An elastic queue `orders` consists of these objects of one vhost:

    orders             an x-consistent-hash exchange that producers publish to
    orders             a queue: replica 0, for direct publishes and messages without a replica
    orders#rest        a fanout exchange to that queue, the alternate exchange: a message that
                       finds no replica is kept
    orders#1 orders#2  the replicas: queues bound to the exchange, with shares as weights
    orders#1#holders   a queue without messages; its consumers may hold messages of orders#1
    orders#topology    a queue of one message: the stored topology, which needs no database
    orders#steerer     an exclusive queue: its owner is the controller and holds the lock
    tidegate.news      a direct exchange: every change of a topology, to the clients that listen

The controller changes the topology; clients only read it. A replica passes through these states:

    STARTING    its queues are being created; no binding, no consumers
    SERVING     bound with its weight; consumed
    DRAINING    its weight goes down to 0; consumed
    is_leaving  empty; its consumers stop when they hold none of its messages
    gone        no longer in the topology, and its queue is deleted

Invariants:

- The topology is stored before a step is taken. `weight_before` and the state say what may be left
  of the previous topology. The next controller repeats the step, and every step can be repeated.
- The version grows with each write; clients ignore lower versions.
- A replica's number is never used twice, so a late client cannot mistake a new replica for an old
  one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import aiormq
import msgspec
from aiormq import exceptions as amqp
from aiormq import spec
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from tidegate.core.errors import (
    Forbidden,
    InvalidValue,
    QueueNotExisting,
    TidegateError,
    Unavailable,
)
from tidegate.core.topology import ReplicaState, replica_name
from tidegate.engines.rabbitmq.connection import (
    ReconnectPolicy,
    read_leniently,
    translating_connect_errors,
    translating_errors,
)
from tidegate.engines.rabbitmq.queues import is_classic_by

if TYPE_CHECKING:
    from tidegate.engines.rabbitmq.client import RabbitmqAddress
    from tidegate.engines.rabbitmq.connection import RabbitmqConnection

log = logging.getLogger(__name__)


# The sum of all weights. Each unit is a bucket of the exchange's ring.
WEIGHTS = 100
FEED_EXCHANGE = "tidegate.news"


def rest_name(queue: str) -> str:
    return f"{queue}#rest"


def ledger_name(queue: str) -> str:
    return f"{queue}#topology"


def controller_name(queue: str) -> str:
    return f"{queue}#steerer"


def holders_name(queue: str, number: int) -> str:
    return f"{replica_name(queue, number)}#holders"


class ElasticReplica(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One queue behind the exchange."""

    number: int
    state: ReplicaState = ReplicaState.STARTING
    # Weight of its binding; 0 means no binding.
    weight: int = 0
    # Weight that it may still be bound with, if a controller was stopped during the change.
    weight_before: int = 0
    # Empty and about to be deleted: consumers stop as soon as they hold none of its messages.
    is_leaving: bool = False


class ElasticTopology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole topology of one elastic queue."""

    queue: str
    # Grows with every write; the highest is valid.
    version: int
    # False if the queues are quorum queues, or may be.
    is_classic: bool = True
    # Arguments of the replicas: those of the queue when it became elastic.
    arguments: dict[str, Any] = {}
    replicas: list[ElasticReplica] = []
    # No number is used twice, so that a late client never takes a new replica for an old one.
    next_number: int = 1
    # The queue is plain again, or about to be.
    is_over: bool = False

    def replica(self, number: int) -> ElasticReplica | None:
        return next((one for one in self.replicas if one.number == number), None)

    @property
    def shares(self) -> dict[int, float]:
        """Parts of new messages by replica; all 0 if the queue itself keeps all messages."""
        total = sum(one.weight for one in self.replicas)
        return {one.number: one.weight / total if total else 0.0 for one in self.replicas}

    def with_replica(self, replica: ElasticReplica) -> ElasticTopology:
        """Return a copy in which one replica is replaced or added."""
        others = [one for one in self.replicas if one.number != replica.number]
        return self._with(sorted([*others, replica], key=lambda one: one.number))

    def without(self, number: int) -> ElasticTopology:
        return self._with([one for one in self.replicas if one.number != number])

    def _with(self, replicas: list[ElasticReplica]) -> ElasticTopology:
        return msgspec.structs.replace(self, replicas=replicas)

    def weighted(self, weights: Mapping[int, int]) -> ElasticTopology:
        """Return a copy with these weights; replicas not named get weight 0.

        Each replica's present weight becomes its `weight_before`.
        """
        return self._with(
            [
                msgspec.structs.replace(
                    one, weight=weights.get(one.number, 0), weight_before=one.weight
                )
                for one in self.replicas
            ]
        )

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def decode_topology(document: bytes) -> ElasticTopology | None:
    """Decode a topology; None if the document is something else."""
    try:
        return msgspec.json.decode(document, type=ElasticTopology)
    except msgspec.DecodeError:
        return None


def weights_of(shares: Mapping[int, float]) -> dict[int, int]:
    """Return integer weights that are nearest to the shares and add up to WEIGHTS.

    A share above 0 gets at least weight 1. No share above 0 gives no weights.
    """
    wanted = {number: share for number, share in shares.items() if share > 0.0}
    total = sum(wanted.values())
    if not wanted or not math.isfinite(total):
        return {}
    # With more than 25 replicas the sum is larger, so that each can have a part.
    parts = max(WEIGHTS, 4 * len(wanted))
    exact = {number: share / total * parts for number, share in wanted.items()}
    weights = {number: max(int(part), 1) for number, part in exact.items()}
    missing = parts - sum(weights.values())
    by_loss = sorted(exact, key=lambda number: (weights[number] - exact[number], number))
    for number in by_loss[: max(missing, 0)]:
        weights[number] += 1
    for _ in range(-missing):
        # The replicas that were raised to one part took it from the largest ones.
        weights[max(weights, key=lambda number: (weights[number], number))] -= 1
    return weights


# Storage of an elastic queue's topology: a RabbitMQ queue that holds one message.
#
# The queue has a maximum length of one and drops the older message, so it always holds the newest
# topology, as durably as any message. To read it, a client gets the message and requeues it.
# Meanwhile another reader finds the queue empty and retries.
#
# Every write also publishes the topology to the feed exchange, for the clients that listen.


_LEDGER_ANSWER_S = 10.0
# Other readers may hold the message, each for one round trip.
_READS_MAX = 200
_READ_AGAIN_S = 0.01
LEDGER_ARGUMENTS: dict[str, int | str] = {"x-max-length": 1, "x-overflow": "drop-head"}


class TopologyMissing(Unavailable):
    """The topology queue exists and stayed empty for all attempts to read it."""


async def read_topology(
    channel: AbstractChannel, queue: str, *, is_empty_fine: bool = False
) -> ElasticTopology | None:
    """Return the stored topology; None if the queue is not elastic (the channel is then closed).

    `is_empty_fine` also returns None if the topology queue stays empty: its creator may have been
    stopped before it wrote. Otherwise that raises TopologyMissing.
    """
    name = ledger_name(queue)
    for attempt in range(_READS_MAX):
        try:
            with translating_refusals(f"queue {name!r}"):
                found = await channel.basic_get(name, timeout=_LEDGER_ANSWER_S)
        except QueueNotExisting:
            return None
        if isinstance(found.delivery, spec.Basic.GetOk):
            topology = decode_topology(found.body)
            with translating_refusals(f"queue {name!r}"):
                await channel.basic_nack(found.delivery.delivery_tag or 0, requeue=True)
            if topology is not None:
                return topology
        elif is_empty_fine and attempt > _READS_MAX // 10:
            return None
        # Random pauses keep concurrent readers apart.
        await asyncio.sleep(_READ_AGAIN_S * random.uniform(0.5, 1.5))
    raise TopologyMissing(
        f"queue {name} should hold what the replicas of {queue} are, and holds nothing: whoever "
        f"emptied it can have it made again by `tidegate steer … --queue {queue}`"
    )


async def write_topology(channel: AbstractChannel, topology: ElasticTopology) -> ElasticTopology:
    """Store a topology under a higher version and publish it; return it when the broker has it."""
    # Based on the clock too, so that versions increase even if the stored topology is lost.
    version = max(topology.version + 1, int(time.time() * 1000))
    written = msgspec.structs.replace(topology, version=version)
    body = written.encode()
    with translating_refusals(f"queue {topology.queue!r}"):
        await channel.basic_publish(
            body,
            routing_key=ledger_name(topology.queue),
            properties=spec.Basic.Properties(delivery_mode=2, content_type="application/json"),
            mandatory=True,
            timeout=_LEDGER_ANSWER_S,
        )
        await channel.basic_publish(
            body,
            exchange=FEED_EXCHANGE,
            routing_key=topology.queue,
            properties=spec.Basic.Properties(content_type="application/json"),
            timeout=_LEDGER_ANSWER_S,
        )
    return written


# The single connection of an elastic queue's controller, which also holds the lock.
#
# The lock is an exclusive queue, which lives exactly as long as the connection that declared it. A
# controller that has lost the lock has also lost its connection, and none of its commands arrive
# any more. So no epoch is needed.
#
# The connection never reconnects. A controller that wants to continue opens another one and takes
# the lock again. A refusal by the broker closes only the channel; the next command opens a new one.


_CONNECT_S = 5.0
_CONTROLLER_ANSWER_S = 10.0
# The broker deletes the exclusive queue when it notices the end of the connection: at once if the
# process was killed, after some heartbeats if its machine is gone.
_ASK_AGAIN_S = 0.5


class QueueLength(NamedTuple):
    """A queue's length and consumers from a passive declaration: exact at that moment."""

    ready: int
    consumers: int


class ControllerConnection:
    """One connection to the broker, with one open channel."""

    def __init__(self, address: RabbitmqAddress) -> None:
        self._address = address
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None

    async def open(self) -> Self:
        read_leniently()
        with translating_connect_errors(self._address.shown, self._address.url.user):
            self._connection = await asyncio.wait_for(
                aiormq.connect(self._address.url, context=self._address.tls), _CONNECT_S
            )
        return self

    async def close(self) -> None:
        if self._connection is not None:
            # Do not wait for a broker that does not answer.
            with contextlib.suppress(Exception, TimeoutError):
                async with asyncio.timeout(_CONNECT_S):
                    await self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def channel(self) -> AbstractChannel:
        """Return the channel, with publisher confirms; open another one after a refusal."""
        if self._channel is None or self._channel.is_closed:
            assert self._connection is not None, "not opened"
            with translating_refusals(f"RabbitMQ at {self._address.shown}"):
                self._channel = await self._connection.channel(
                    publisher_confirms=True, on_return_raises=True, timeout=_CONNECT_S
                )
        return self._channel

    async def has_lock(self, queue: str) -> bool:
        """Take the lock of a queue; return False if another controller holds it."""
        channel = await self.channel()
        try:
            with translating_refusals(f"queue {queue!r}"):
                await channel.queue_declare(
                    controller_name(queue), exclusive=True, timeout=_CONTROLLER_ANSWER_S
                )
        except LockHeld:
            return False
        return True

    async def wait_for_lock(self, queue: str) -> None:
        """Wait until the lock of a queue is free, and take it."""
        while True:
            if await self.has_lock(queue):
                return
            await asyncio.sleep(_ASK_AGAIN_S)

    async def length(self, name: str) -> QueueLength | None:
        """Return a queue's length and consumers; None if it does not exist."""
        channel = await self.channel()
        try:
            with translating_refusals(f"queue {name!r}"):
                found = await channel.queue_declare(
                    name, passive=True, timeout=_CONTROLLER_ANSWER_S
                )
        except QueueNotExisting:
            return None
        return QueueLength(found.message_count or 0, found.consumer_count or 0)

    async def is_classic(self, name: str) -> bool:
        """Return whether an existing queue is classic, as far as the broker's refusal shows it."""
        try:
            await self.declare_queue(name, {"x-queue-type": "classic"})
        except NameConflict as refusal:
            return is_classic_by(str(refusal))
        return True

    async def declare_queue(self, name: str, arguments: dict[str, Any]) -> None:
        channel = await self.channel()
        with translating_refusals(f"queue {name!r}"):
            await channel.queue_declare(
                name, durable=True, arguments=arguments or None, timeout=_CONTROLLER_ANSWER_S
            )

    async def bind(self, name: str, exchange: str, weight: int) -> None:
        channel = await self.channel()
        with translating_refusals(f"queue {name!r}"):
            await channel.queue_bind(name, exchange, str(weight), timeout=_CONTROLLER_ANSWER_S)

    async def unbind(self, name: str, exchange: str, weight: int) -> None:
        """Remove a binding; a missing binding is no error to the broker."""
        channel = await self.channel()
        with translating_refusals(f"queue {name!r}"):
            await channel.queue_unbind(name, exchange, str(weight), timeout=_CONTROLLER_ANSWER_S)

    async def delete_queue(self, name: str, *, conditions: bool = True) -> None:
        """Delete a queue.

        With `conditions` it raises NameConflict if the queue has ready messages or consumers.
        """
        channel = await self.channel()
        with translating_refusals(f"queue {name!r}"):
            await channel.queue_delete(
                name, if_unused=conditions, if_empty=conditions, timeout=_CONTROLLER_ANSWER_S
            )


# A client's view of the elastic queues of its vhost: the stored topology plus a change feed.
#
# The client binds to the feed first and reads the stored topology then, so it misses no change. A
# topology that arrives twice is recognised by its version.
#
# When the feed's channel closes, the client binds and reads again for every queue that it knows. A
# user without permission to listen reads the stored topologies every 15 seconds instead.


_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
# Seconds between two reads without permission to listen.
_POLL_S = 15.0


class TopologyFeed:
    """The elastic queues of one vhost, as one client knows them."""

    def __init__(self, connection: RabbitmqConnection) -> None:
        self._connection = connection
        # Topology by queue; None means a plain queue.
        self._known: dict[str, ElasticTopology | None] = {}
        self._heard: dict[str, set[Callable[[], None]]] = {}
        self._channel: AbstractChannel | None = None
        self._name = ""
        self._may_listen = True
        self._keeping: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()
        # One lock per queue, which keeps callers in order.
        self._turns: dict[str, asyncio.Lock] = {}

    async def topology(self, queue: str) -> ElasticTopology | None:
        """Return the newest known topology; None means a plain queue.

        The first call for a queue reads the stored topology, and waits for a connection if need be.
        """
        # Take the lock even if the topology is known by now: a later put must not overtake one that
        # waits.
        async with self._turns.setdefault(queue, asyncio.Lock()):
            patience = ReconnectPolicy(self._connection)
            while queue not in self._known:
                try:
                    async with self._busy:
                        if queue not in self._known:
                            await self._learn(queue)
                except Unavailable as lost:
                    await patience.wait(lost)
        return self._current(queue)

    def invalidate(self, queue: str) -> None:
        """Discard a topology that proved wrong; the next call of `topology` reads it again."""
        self._known.pop(queue, None)

    def on_news(self, queue: str, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` whenever the queue's topology changes; return a function that ends this."""
        listeners = self._heard.setdefault(queue, set())
        listeners.add(heard)
        return lambda: listeners.discard(heard)

    def _current(self, queue: str) -> ElasticTopology | None:
        known = self._known.get(queue)
        return None if known is None or known.is_over else known

    async def _learn(self, queue: str) -> None:
        if self._may_listen:
            try:
                await self._listen_for(queue)
            except Forbidden as refusal:
                self._may_listen = False
                log.info("replicas are looked for now and then: %s", refusal)
        if self._keeping is None or self._keeping.done():
            self._keeping = self._connection.spawn(self._stay_subscribed())
        before = self._known.get(queue)
        try:
            found = await self._read(queue)
        except TopologyMissing:
            # Many concurrent readers may keep the message from each other. Keep the known topology;
            # without one, the feed brings the next.
            found = before
        # A topology that the feed brought meanwhile is newer than an empty read.
        if found is not None or self._known.get(queue) is before:
            self._take(queue, found)

    async def _read(self, queue: str) -> ElasticTopology | None:
        channel = await self._connection.channel()
        try:
            return await read_topology(channel, queue)
        except Forbidden:
            return None  # this user may not read it: treat the queue as plain
        finally:
            if not channel.is_closed:
                await channel.close()

    async def _listen(self) -> AbstractChannel:
        if self._channel is None or self._channel.is_closed:
            channel = await self._connection.channel()
            with translating_refusals(f"exchange {FEED_EXCHANGE!r}"):
                await channel.exchange_declare(FEED_EXCHANGE, exchange_type="direct", durable=True)
                declared = await channel.queue_declare(exclusive=True, auto_delete=True)
                self._name = declared.queue or ""
                await channel.basic_consume(self._name, self._delivered, no_ack=True)
            self._channel = channel
        return self._channel

    async def _listen_for(self, queue: str) -> None:
        channel = await self._listen()
        with translating_refusals(f"exchange {FEED_EXCHANGE!r}"):
            await channel.queue_bind(self._name, FEED_EXCHANGE, queue)

    async def _delivered(self, delivered: DeliveredMessage) -> None:
        topology = decode_topology(delivered.body)
        if topology is not None:
            self._take(topology.queue, topology)

    def _take(self, queue: str, topology: ElasticTopology | None) -> None:
        before = self._known.get(queue)
        if before is not None and topology is not None and topology.version <= before.version:
            return
        self._known[queue] = topology
        if topology != before:
            for heard in list(self._heard.get(queue, ())):
                heard()

    async def _stay_subscribed(self) -> None:
        """Listen and read again when the channel has closed; without permission, poll."""
        backoff_s = _BACKOFF_FIRST_S
        while True:
            if not self._may_listen:
                await asyncio.sleep(_POLL_S)
            elif self._channel is not None:
                await asyncio.wait({self._channel.closing})
            try:
                async with self._busy:
                    if self._may_listen and not self._known:
                        # Without queues, nothing else would reopen a closed channel, and the loop
                        # would spin.
                        await self._listen()
                    for queue in list(self._known):
                        await self._learn(queue)
                backoff_s = _BACKOFF_FIRST_S
            except TidegateError:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)


# Refusals by the broker about elastic queues, translated into errors that say what to do.


PLUGIN = "rabbitmq_consistent_hash_exchange"


class NameConflict(InvalidValue):
    """The broker has an object of another kind, not empty, or in use."""


class LockHeld(Unavailable):
    """Another connection holds an exclusive queue."""


@contextlib.contextmanager
def translating_refusals(about: str) -> Iterator[None]:
    """Translate the refusals and connection errors of calls inside into errors about `about`."""
    with translating_errors(about):
        try:
            yield
        except amqp.ChannelLockedResource as locked:
            raise LockHeld(f"{about}: {locked}") from locked
        except amqp.ChannelPreconditionFailed as other:
            raise NameConflict(f"{about}: {other}") from other
        except amqp.ConnectionCommandInvalid as unknown:
            if "exchange type" not in str(unknown):
                raise
            raise InvalidValue(
                f"{about}: the broker has no x-consistent-hash exchanges: "
                f"`rabbitmq-plugins enable {PLUGIN}`"
            ) from unknown
        except amqp.ConnectionNotImplemented as unknown:
            raise InvalidValue(f"{about}: {unknown}") from unknown


# The RabbitMQ queues that a subscription to an elastic queue consumes from.
#
# These are the queue itself (replica 0) and all serving or draining replicas. A bound subscription
# consumes from its one replica only. Starting replicas are left out because their queue may not
# exist yet. Leaving replicas are left out so that their consumers stop.


class ReplicaSource(NamedTuple):
    """A RabbitMQ queue to consume from."""

    name: str
    # Its holders queue; None for a queue that is never deleted.
    holders: str | None = None


def sources_of(
    topology: ElasticTopology | None, queue: str, bound: int | None
) -> list[ReplicaSource]:
    """Return the queues to consume from; `bound` is the only replica to use, None means all."""
    replicas = [] if topology is None else topology.replicas
    open_ = [
        one.number
        for one in replicas
        if one.state is not ReplicaState.STARTING and not one.is_leaving
    ]
    found = [ReplicaSource(replica_name(queue, one), holders_name(queue, one)) for one in open_]
    if bound is None:
        return [ReplicaSource(queue), *found]
    return [one for one in found if one.name == replica_name(queue, bound)]
