"""Queues of RabbitMQ: lookup, creation, and detection of their type.

An existing queue is used as it is. Before consuming, the client must know its type: on classic
queues the prefetch of a whole channel can change live, and on quorum queues the attempt closes the
connection.

AMQP does not report the type. So the client declares the queue as a classic one. If that succeeds,
it is classic; otherwise the refusal names the difference. If the type remains unclear, the client
treats it as a quorum queue, which is safe for both.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from aiormq.abc import AbstractChannel, DeliveredMessage

from tidegate.core.errors import Forbidden, InvalidValue, QueueNameNotUnique, QueueNotExisting
from tidegate.core.model import Overflow, QueuePolicy

if TYPE_CHECKING:
    from tidegate.engines.rabbitmq.client import RabbitmqAddress
    from tidegate.engines.rabbitmq.publisher import AdminChannel


# Extra deliveries for messages that are returned unbegun: workers stop, and prefetches change.
_UNBEGUN_MAX = 20
# Derived names, such as those of delay queues, must fit into 255 bytes.
_NAME_LENGTH_MAX = 200
# aio-pika's restriction; RabbitMQ allows more.
_NAME = re.compile(r"[a-zA-Z0-9\-_.:@#,/+ ]+")
# Arguments that only classic queues have, or can differ in.
_CLASSIC_ONLY = {"durable", "auto_delete", "exclusive", "x-max-priority", "x-queue-mode"}
_DIFFERS = re.compile(
    r"inequivalent arg '(?P<name>[^']+)'.* but current is (?P<now>.*)$", re.DOTALL
)


class RabbitmqQueue(msgspec.Struct, frozen=True):
    """A queue's state from a passive declaration."""

    name: str
    # Ready messages, without unacknowledged ones.
    messages: int
    consumers: int


class RabbitmqQueues:
    """Queues of one vhost, as one client knows them."""

    def __init__(self, admin: AdminChannel, address: RabbitmqAddress) -> None:
        self._admin = admin
        self._arguments = arguments_of(address)
        self._queue_type = address.queue_type
        self._classic: dict[str, bool] = {}

    async def inspect(self, name: str) -> RabbitmqQueue:
        """Return a queue's state; raise QueueNotExisting or Forbidden."""

        async def passive(channel: AbstractChannel) -> RabbitmqQueue:
            declared = await channel.queue_declare(name, passive=True)
            return RabbitmqQueue(name, declared.message_count or 0, declared.consumer_count or 0)

        return await self._admin.run(f"queue {name!r}", passive)

    async def create(
        self,
        name: str,
        *,
        durable: bool = True,
        exist_ok: bool = False,
        policy: QueuePolicy | None = None,
    ) -> None:
        """Create a queue with those parts of its policy that RabbitMQ itself can apply."""
        check_name(name)
        arguments = self._arguments | self._kept(name, policy)
        if not durable and self._queue_type != "classic":
            raise InvalidValue(f"a {self._queue_type} queue is durable: leave durable=False out")
        try:
            await self.inspect(name)
        except QueueNotExisting:
            pass
        else:
            if exist_ok:
                return
            raise QueueNameNotUnique(f"queue {name!r} exists: use exist_ok=True, or another name")

        if policy is not None and "x-dead-letter-exchange" in arguments:
            # Without its dead-letter queue RabbitMQ would drop the dead letters.
            await self.create(arguments["x-dead-letter-routing-key"], exist_ok=True)

        async def declare(channel: AbstractChannel) -> None:
            await channel.queue_declare(name, durable=durable, arguments=arguments or None)

        try:
            await self._admin.run(f"queue {name!r}", declare)
        except InvalidValue as refusal:
            if not exist_ok or "inequivalent" not in str(refusal):
                raise InvalidValue(
                    f"{refusal}: somebody has made it otherwise meanwhile. Delete it, or take it "
                    "as it is"
                ) from refusal
        else:
            self._classic[name] = self._queue_type == "classic"

    def _kept(self, name: str, policy: QueuePolicy | None) -> dict[str, Any]:
        """Return the arguments for a policy.

        A queue without a policy gets none, so that other programs can declare it as a plain queue.
        """
        if policy is None:
            return {}
        if policy.paused:
            raise InvalidValue("paused is for tidegate:// only: on RabbitMQ stop the workers")
        kept: dict[str, Any] = {}
        is_quorum = self._queue_type == "quorum"
        if policy.ttl_s is not None:
            kept["x-message-ttl"] = int(policy.ttl_s * 1e3)
        if policy.length_max is not None:
            kept["x-max-length"] = policy.length_max
        if policy.bytes_max is not None:
            kept["x-max-length-bytes"] = policy.bytes_max
        if "x-max-length" in kept or "x-max-length-bytes" in kept:
            if policy.overflow is not Overflow.REFUSE:
                raise InvalidValue(
                    f"overflow={policy.overflow.value} is for tidegate:// only: on RabbitMQ a full "
                    "queue refuses, so say overflow=refuse"
                )
            kept["x-overflow"] = "reject-publish"
        if is_quorum and policy.deliveries_max:
            # Catches messages that crash their consumers. RabbitMQ also counts messages that were
            # returned unbegun, and these must not become dead letters.
            kept["x-delivery-limit"] = policy.deliveries_max - 1 + _UNBEGUN_MAX
        dead_letters = policy.dead_letter_queue(name)
        if dead_letters is not None and (policy.keep_expired or "x-delivery-limit" in kept):
            kept["x-dead-letter-exchange"] = ""
            kept["x-dead-letter-routing-key"] = dead_letters
            if is_quorum:
                kept |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        return kept

    async def delete(self, name: str) -> None:
        await self.inspect(name)
        self._classic.pop(name, None)

        async def delete(channel: AbstractChannel) -> None:
            await channel.queue_delete(name)

        await self._admin.run(f"queue {name!r}", delete)

    async def purge(self, name: str) -> int:
        async def purge(channel: AbstractChannel) -> int:
            return (await channel.queue_purge(name)).message_count or 0

        return await self._admin.run(f"queue {name!r}", purge)

    async def get(self, name: str) -> DeliveredMessage | None:
        """Take and acknowledge a message; None if there is none."""

        async def get(channel: AbstractChannel) -> DeliveredMessage:
            return await channel.basic_get(name, no_ack=True)

        delivered = await self._admin.run(f"queue {name!r}", get, repeatable=False)
        return None if delivered.delivery_tag is None else delivered

    def remove(self, name: str) -> None:
        """Discard the known type: the queue may have been created again with another one."""
        self._classic.pop(name, None)

    async def is_classic(self, name: str) -> bool:
        """Return whether a queue is classic; raise QueueNotExisting if there is none."""
        await self.inspect(name)
        known = self._classic.get(name)
        if known is None:
            known = self._classic[name] = await self._probe(name)
        return known

    async def _probe(self, name: str) -> bool:
        async def declare(channel: AbstractChannel) -> None:
            await channel.queue_declare(name, durable=True, arguments={"x-queue-type": "classic"})

        try:
            await self._admin.run(f"queue {name!r}", declare)
        except Forbidden:
            return False
        except InvalidValue as refusal:
            return is_classic_by(str(refusal))
        return True


def arguments_of(address: RabbitmqAddress) -> dict[str, Any]:
    """Return the arguments for new queues that the URL asks for."""
    arguments: dict[str, Any] = {}
    if address.queue_type != "classic":
        arguments["x-queue-type"] = address.queue_type
    if address.max_priority is not None:
        arguments["x-max-priority"] = address.max_priority
    return arguments


def is_classic_by(refusal: str) -> bool:
    found = _DIFFERS.search(refusal)
    if found is None:
        return False
    if found["name"] == "x-queue-type":
        return "quorum" not in found["now"] and "stream" not in found["now"]
    return found["name"] in _CLASSIC_ONLY


def check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidValue(f"a queue is named by a string that is not empty, not {name!r}")
    if len(name) > _NAME_LENGTH_MAX:
        raise InvalidValue(
            f"a queue's name has up to {_NAME_LENGTH_MAX} bytes on RabbitMQ, {name[:20]!r}… has "
            "more"
        )
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"a queue's name has letters of ASCII, digits, blanks and -_.:@#,/+ on RabbitMQ, "
            f"unlike {name!r}"
        )
    if name.startswith("amq."):
        raise InvalidValue(f"names that begin with amq. are RabbitMQ's own, as is {name!r}")
