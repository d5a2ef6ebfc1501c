"""RabbitMQ behind the client API: everything that workers need, and the rest where it is possible.

Theory of operation.

A `RabbitmqClient` uses up to three connections, each reconnecting by itself:

- `connection` consumes, declares and listens to the topology feed.
- `_publishing` publishes, opened with the first publish. RabbitMQ stops reading from a publishing
  connection while it is short of memory or disk. Acknowledgements on the same connection would then
  not arrive, and its queues would not shrink.
- `DirectReplies` has one for replies to direct reply-to addresses (see there).

The parts of a client:

    RabbitmqPublisher   confirmed publishing, in order, across reconnects
    AdminChannel        declarations, which close their channel when they fail
    RabbitmqQueues      passive and active declarations, and the type of a queue
    RetryQueues         delays, retries and dead letters, which RabbitMQ does not have
    PendingReplies      requests that wait for a reply
    TopologyFeed        the replicas of elastic queues

Calls that RabbitMQ cannot support fail at once with InvalidValue and an alternative. Queue policies
are kept by the client: RabbitMQ knows nothing about retries, backoff and delivery counts. All
clients of a queue should therefore use the same policy.

A put to a plain queue goes to the default exchange. A put to an elastic queue goes to the queue's
consistent-hash exchange, with its group or message id as the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self, Unpack

from yarl import URL

from tidegate.client import tracing
from tidegate.client.address import read_password_file, redact_url, verifying_context
from tidegate.client.client import Client, bound_replica
from tidegate.client.connect import Connector
from tidegate.client.handler import error_text
from tidegate.client.message import (
    MessageOptions,
    PutOptions,
    check_count,
    check_seconds,
    checked_options,
    checked_payload,
)
from tidegate.core.errors import InvalidValue, NoMessagesInQueue, QueueNotExisting
from tidegate.core.model import DEFAULT_POLICY, PRIORITY_DEFAULT, PRIORITY_HIGHEST, QueuePolicy
from tidegate.core.topology import ReplicaState, replica_name
from tidegate.engines.rabbitmq.connection import OutageTracker, RabbitmqConnection
from tidegate.engines.rabbitmq.message import (
    Properties,
    RabbitmqMessage,
    new_message_id,
    properties_of,
)
from tidegate.engines.rabbitmq.publisher import (
    DIRECT,
    AdminChannel,
    DirectReplies,
    PendingReplies,
    RabbitmqPublisher,
)
from tidegate.engines.rabbitmq.queues import RabbitmqQueue, RabbitmqQueues, check_name
from tidegate.engines.rabbitmq.subscription import RabbitmqSubscription, RetryQueues
from tidegate.engines.rabbitmq.topology import TopologyFeed

if TYPE_CHECKING:
    from tidegate.engines.rabbitmq.topology import ElasticTopology


# Puts of one put_many that are under way at a time.
_PUTS_ABREAST = 1000
_REFUSED = {
    "receiver": "RabbitMQ addresses no clients: give each receiver a queue of its own",
    "dedup_id": "RabbitMQ recognises no duplicates: let the handler do so, by message.message_id",
    "group": "RabbitMQ keeps no groups in order: use a queue with one worker for each",
    "tenant": "RabbitMQ shares nothing over tenants: give each tenant a queue of its own",
}


class NotOnRabbitmq(InvalidValue, AttributeError):  # type: ignore[misc]
    """A call of the native client that RabbitMQ has no counterpart for."""


class RabbitmqClient:
    """A client of RabbitMQ: `async with tidegate.connect("amqp://…") as mq`."""

    engine_name = "rabbitmq"

    def __init__(self, address: RabbitmqAddress, *, reconnect_s: float = 60.0) -> None:
        self._address = address
        self._reconnect_s = reconnect_s
        self._policies: dict[str, QueuePolicy] = {}

    async def open(self) -> Self:
        outage = OutageTracker(self._address.shown)
        self.connection = RabbitmqConnection(self._address, self._reconnect_s, outage)
        # RabbitMQ stops reading acknowledgements from a connection that publishes while it is short
        # of memory.
        self._publishing = RabbitmqConnection(
            self._address, self._reconnect_s, outage, opens_when_needed=True
        )
        self._publisher = RabbitmqPublisher(self._publishing)
        admin = AdminChannel(self.connection)
        self.queues = RabbitmqQueues(admin, self._address)
        self.retries = RetryQueues(self._publisher, admin, self.queues, self.policy_of)
        self._replies = PendingReplies(self._publishing)
        self._answers = DirectReplies(self._address, self._reconnect_s, outage)
        self.news = TopologyFeed(self.connection)
        await self.connection.open()
        return self

    async def close(self) -> None:
        # Close all connections concurrently: each one that is blocked waits for its whole timeout.
        ends = (self._answers.close(), self._publishing.close(), self.connection.close())
        await asyncio.gather(*ends)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task until the client closes."""
        return self.connection.spawn(work)

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(Client, name):
            raise NotOnRabbitmq(
                f"{name} is for tidegate:// only, RabbitMQ has nothing for it: docs/rabbitmq.md "
                "says what works on both"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # Queues

    async def queue(self, name: str) -> RabbitmqQueue:
        """Return a queue's length and consumers; raise QueueNotExisting if there is none."""
        check_name(name)
        found = [await self.queues.inspect(one) for one in await self._names(name)]
        # A consumer of an elastic queue consumes from all replicas, or is bound to one.
        consumers = max(one.consumers for one in found)
        return RabbitmqQueue(name, sum(one.messages for one in found), consumers)

    async def _names(self, queue: str) -> list[str]:
        """Return the RabbitMQ queues that hold a queue's messages: itself, and its replicas."""
        topology = await self.news.topology(queue)
        replicas = [] if topology is None else topology.replicas
        there = [one.number for one in replicas if one.state is not ReplicaState.STARTING]
        return [queue, *(replica_name(queue, number) for number in there)]

    async def create_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exist_ok: bool = False,
        policy: QueuePolicy | None = None,
        ephemeral: bool = False,
    ) -> RabbitmqQueue:
        """Create a queue of the URL's queue_type; an existing queue stays as it is."""
        if ephemeral:
            raise InvalidValue("ephemeral is for tidegate:// only: on RabbitMQ delete the queue")
        await self.queues.create(name, durable=durable, exist_ok=exist_ok, policy=policy)
        self.adopt_policy(name, policy)
        return RabbitmqQueue(name, 0, 0)

    async def delete_queue(self, name: str) -> None:
        check_name(name)
        if await self.news.topology(name) is not None:
            raise InvalidValue(
                f"queue {name!r} is elastic: `tidegate steer … --queue {name} --off` makes it a "
                "plain one, which can be deleted"
            )
        await self.queues.delete(name)

    async def waiting(self, queue: str) -> int | None:
        """Return the number of ready messages; cheap enough to call once a second."""
        return (await self.queue(queue)).messages

    async def purge(self, name: str) -> int:
        """Remove the ready messages; return how many there were."""
        check_name(name)
        return sum([await self.queues.purge(one) for one in await self._names(name)])

    def adopt_policy(self, queue: str, policy: QueuePolicy | None) -> None:
        """Apply a policy to messages that this client returns; None changes nothing."""
        if policy is not None:
            self._policies[queue] = policy

    def policy_of(self, queue: str) -> QueuePolicy:
        return self._policies.get(queue, DEFAULT_POLICY)

    # Putting

    async def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> int:
        """Put a message; return its id once RabbitMQ has confirmed it."""
        check_name(queue)
        data = checked_payload(payload)
        topology = await self.news.topology(queue)
        special = _checked(options, topology)
        with tracing.publishing(queue, options.get("headers")) as headers:
            message_id = new_message_id()
            properties, delay_s = properties_of(message_id, special, headers, time.time())
            if delay_s:
                # The delay queue accepts the message even if its target queue does not exist.
                await self.queues.inspect(queue)
            elif topology is not None:
                key = options.get("group") or str(message_id)
                await self._publish_spread(queue, data, properties, key)
                return message_id
            await self.retries.publish_later(data, properties, queue, delay_s)
        return message_id

    async def _publish_spread(
        self, queue: str, payload: bytes, properties: Properties, key: str
    ) -> None:
        """Publish to a replica: the exchange hashes the key, by the current shares."""
        try:
            await self._publisher.publish(payload, properties, key, exchange=queue)
        except QueueNotExisting:
            # The exchange was deleted by hand.
            self.news.invalidate(queue)
            await self._publisher.publish(payload, properties, queue)

    async def put_many(
        self, queue: str, payloads: Iterable[bytes], *, priority: int = PRIORITY_DEFAULT
    ) -> list[int]:
        """Put many messages; return their ids once all are confirmed."""
        message_ids: list[int] = []
        coming = iter(payloads)
        while some := list(itertools.islice(coming, _PUTS_ABREAST)):
            puts = (self.put(queue, payload, priority=priority) for payload in some)
            # Raise an error only when no put of this chunk is under way.
            for result in await asyncio.gather(*puts, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
                message_ids.append(result)
        return message_ids

    # Taking

    def subscribe(
        self,
        queue: str,
        *,
        prefetch: int = 200,
        ack: Literal["explicit", "automatic"] = "explicit",
        order: str = "priority",
        replica: int | None = None,
    ) -> RabbitmqSubscription:
        """Subscribe to a queue, with at most `prefetch` unacknowledged messages."""
        check_name(queue)
        check_count("prefetch", prefetch)
        if ack not in ("explicit", "automatic"):
            raise InvalidValue(f"ack is explicit or automatic, not {ack!r}")
        if order != "priority":
            raise InvalidValue("RabbitMQ's queues decide the order")
        bound = bound_replica(queue) if replica is None else replica
        return RabbitmqSubscription(
            self, queue, prefetch, automatic=ack == "automatic", bound=bound
        )

    async def consume(
        self,
        queue: str,
        handler: Callable[[RabbitmqMessage], Awaitable[Any]],
        *,
        prefetch: int = 200,
    ) -> None:
        """Call `handler` for each message until cancelled."""
        handler = tracing.traced_handler(handler)
        async with self.subscribe(queue, prefetch=prefetch) as subscription:
            async for message in subscription:
                try:
                    await handler(message)
                except Exception as error:
                    await message.nack(error=error_text(error))
                else:
                    message.ack()

    async def get(
        self, queue: str, *, wait: float = 0.0, order: str = "oldest", **more: Any
    ) -> RabbitmqMessage:
        """Take and acknowledge one message.

        Raises NoMessagesInQueue if none comes within `wait` seconds.
        """
        if order != "oldest" or any(value is not None for value in more.values()):
            raise InvalidValue(
                "on RabbitMQ get() takes the next message and acknowledges it: use subscribe() "
                "to hold messages, and request() for replies"
            )
        check_name(queue)
        check_seconds("wait", wait, at_least=0.0)
        for name in await self._names(queue):
            delivered = await self.queues.get(name)
            if delivered is not None:
                return RabbitmqMessage(delivered, queue, None, self.retries)
        taken: RabbitmqMessage | None = None
        if wait:
            # A message that was taken is acknowledged already, so return it even after the timeout.
            with contextlib.suppress(TimeoutError):
                async with (
                    asyncio.timeout(wait),
                    self.subscribe(queue, prefetch=1, ack="automatic") as subscription,
                ):
                    taken = await anext(aiter(subscription))
        if taken is None:
            raise NoMessagesInQueue(f"queue {queue!r} is empty")
        return taken

    # Asking

    async def request(
        self,
        queue: str,
        payload: bytes,
        *,
        timeout: float = 30.0,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
        priority: int = PRIORITY_DEFAULT,
    ) -> RabbitmqMessage:
        """Put a request and return its reply; raise NoReply if none comes in `timeout` seconds."""
        check_name(queue)
        check_seconds("timeout", timeout, at_least=0.0)
        data = checked_payload(payload)
        special = checked_options(
            {"content_type": content_type, "headers": headers, "priority": priority}
        )
        with tracing.publishing(queue, headers) as carried:
            properties, _ = properties_of(new_message_id(), special, carried, time.time())
            delivered = await self._replies.ask(queue, data, properties, timeout)
        return RabbitmqMessage(delivered, queue, None, self.retries)

    async def reply(
        self,
        message: RabbitmqMessage,
        payload: bytes,
        *,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> int:
        """Reply to the sender of a request; return the reply's id.

        Returns 0 if the reply cannot reach the sender, for example because it has disconnected.
        Raises InvalidValue if the message asks for no reply.
        """
        reply_to = message.properties.reply_to
        if message.context is None:
            raise InvalidValue("this message asks for no reply: it has no reply_to")
        if not reply_to:
            # A message with a context that `request` did not send: it has no reply address.
            return 0
        special = checked_options({"content_type": content_type, "headers": headers})
        message_id = new_message_id()
        properties, _ = properties_of(message_id, special, headers, time.time())
        properties.correlation_id = message.properties.correlation_id
        data = checked_payload(payload)
        try:
            if not reply_to.startswith(DIRECT):
                await self._publisher.publish(data, properties, reply_to)
            elif not await self._answers.send(data, properties, reply_to):
                return 0
        except QueueNotExisting:
            return 0
        return message_id


def _checked(options: PutOptions, topology: ElasticTopology | None) -> MessageOptions:
    special = checked_options(options)
    for name, instead in _REFUSED.items():
        # An elastic queue keeps a group in one replica as long as its shares do not change.
        is_fine = name == "group" and topology is not None
        if options.get(name) is not None and not is_fine:
            raise InvalidValue(f"{name}= is for tidegate:// only. {instead}")
    return special


def connector(
    url: str,
    *,
    name: str | None = None,
    client_id: int | None = None,
    mode: str = "read-write",
    reconnect_s: float = 60.0,
    user: str | None = None,
    password: str | None = None,
    password_file: str | os.PathLike[str] | None = None,
    tls: bool | ssl.SSLContext | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> Connector[RabbitmqClient]:
    """Return a connector; the keywords are those of `tidegate.connect`."""
    if client_id is not None or mode != "read-write":
        raise InvalidValue(
            "client_id= and mode= are for Tidegate's own nodes: on RabbitMQ the user's permissions "
            "say what may be done"
        )
    address = parse_address(
        url,
        name=name,
        user=user,
        password=password,
        password_file=password_file,
        tls=tls,
        ca_file=ca_file,
    )
    return Connector(lambda: RabbitmqClient(address, reconnect_s=reconnect_s))


# Parsing of `amqp://user:password@host:port/vhost?queue_type=quorum`.
#
#     queue_type     classic (default) or quorum: the type of queues that the client creates
#     max_priority   number of priorities of classic queues that the client creates; default: none
#
# Tidegate keeps these two parameters and passes all others to aio-pika (`heartbeat`, `timeout`,
# `name`, …).


QUEUE_TYPES = ("classic", "quorum")
_PORTS = {"amqp": 5672, "amqps": 5671}


class RabbitmqAddress(NamedTuple):
    """The parts of a broker's URL."""

    # With the password, without Tidegate's own parameters.
    url: URL
    # Without the password, for logs and errors.
    shown: str
    queue_type: str
    max_priority: int | None
    tls: ssl.SSLContext | None


def parse_address(
    url: str,
    *,
    name: str | None = None,
    user: str | None = None,
    password: str | None = None,
    password_file: str | os.PathLike[str] | None = None,
    tls: bool | ssl.SSLContext | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> RabbitmqAddress:
    """Parse a URL and the options beside it; raise InvalidValue if they contradict each other.

    Options override the URL. Without a user, `guest` is used, whom RabbitMQ accepts from its own
    machine only.
    """
    try:
        parsed = URL(url)
        port = parsed.port
    except ValueError as failure:
        raise InvalidValue(f"{redact_url(url)} is no URL: {failure}") from None
    if not parsed.host:
        raise InvalidValue(
            f"{redact_url(url)} names no host: write amqp://user:password@host:port/"
        )
    if tls and parsed.scheme == "amqp":
        parsed = parsed.with_scheme("amqps")
    if tls is False and parsed.scheme == "amqps":
        raise InvalidValue(f"tls=False, but {redact_url(url)} asks for TLS: write amqp://")
    if ca_file is not None and parsed.scheme != "amqps":
        raise InvalidValue("ca_file= is for TLS: write amqps:// or tls=True")
    if password is None and password_file is not None:
        password = read_password_file(Path(password_file))
    if user is not None:
        parsed = parsed.with_user(user)
    if password is not None:
        parsed = parsed.with_password(password)
    if parsed.user is None:
        # RabbitMQ's default user, accepted over loopback only.
        parsed = parsed.with_user("guest").with_password(parsed.password or "guest")
    query = dict(parsed.query)
    if name is not None:
        query["name"] = name
    queue_type = query.pop("queue_type", QUEUE_TYPES[0])
    if queue_type not in QUEUE_TYPES:
        raise InvalidValue(
            f"queue_type is {' or '.join(QUEUE_TYPES)}, not {queue_type!r}, in {redact_url(url)}"
        )
    max_priority = _max_priority(query.pop("max_priority", None), queue_type, url)
    return RabbitmqAddress(
        parsed.with_query(query).with_port(port or _PORTS[parsed.scheme]),
        redact_url(url),
        queue_type,
        max_priority,
        _context(parsed.scheme, tls, ca_file),
    )


def _max_priority(text: str | None, queue_type: str, url: str) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or not 1 <= int(text) <= 255:
        raise InvalidValue(
            f"max_priority is from 1 to 255, not {text!r}, in {redact_url(url)}: puts have "
            f"priorities "
            f"up to {PRIORITY_HIGHEST}"
        )
    if queue_type != "classic":
        raise InvalidValue(f"max_priority is for classic queues, not {queue_type} ones")
    return int(text)


def _context(
    scheme: str,
    tls: bool | ssl.SSLContext | None,
    ca_file: str | os.PathLike[str] | None,
) -> ssl.SSLContext | None:
    if isinstance(tls, ssl.SSLContext):
        return tls
    if scheme != "amqps":
        return None
    return verifying_context(None if ca_file is None else Path(ca_file))
