"""Messages of RabbitMQ as an application sees them."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from aiormq import spec
from aiormq.abc import DeliveredMessage
from pamqp.header import ContentHeader

from tidegate.client.message import ERROR_LENGTH_MAX, MessageOptions, check_seconds, check_text
from tidegate.core.errors import InvalidValue
from tidegate.core.model import (
    PRIORITY_DEFAULT,
    PRIORITY_HIGHEST,
    PRIORITY_LOWEST,
    Death,
    DeathReason,
    Failure,
)

if TYPE_CHECKING:
    from tidegate.engines.rabbitmq.consumer import RabbitmqConsumer
    from tidegate.engines.rabbitmq.subscription import RetryQueues


class RabbitmqMessage:
    """One delivered message."""

    __slots__ = (
        "_by_the_broker",
        "_consumer",
        "_retries",
        "_tag",
        "payload",
        "properties",
        "queue",
    )

    def __init__(
        self,
        delivered: DeliveredMessage,
        queue: str,
        consumer: RabbitmqConsumer | None,
        retries: RetryQueues,
    ) -> None:
        self.payload: bytes = delivered.body
        self.properties: Properties = delivered.header.properties
        self.queue = queue
        self._tag = delivered.delivery_tag or 0
        self._by_the_broker = bool(delivered.redelivered)
        self._consumer = consumer
        self._retries = retries

    def __repr__(self) -> str:
        return f"<RabbitmqMessage {self.message_id} of {len(self.payload)} bytes>"

    @property
    def message_id(self) -> int:
        return message_id_of(self.properties, self.payload)

    @property
    def context(self) -> int | None:
        return context_of(self.properties)

    @property
    def priority(self) -> int:
        return priority_of(self.properties)

    @property
    def content_type(self) -> str | None:
        return self.properties.content_type

    @property
    def headers(self) -> dict[str, str]:
        return user_headers(self.properties)

    @property
    def expires_at(self) -> float | None:
        """Seconds since 1970; None means that the message does not expire."""
        return expires_at_of(self.properties)

    @property
    def delivery_count(self) -> int:
        """Number of deliveries, this one included, as far as RabbitMQ reports them."""
        return delivery_count_of(self.properties, redelivered=self._by_the_broker)

    @property
    def redelivered(self) -> bool:
        """Whether the message may have been delivered before; False means certainly not."""
        return (
            self._by_the_broker
            or self.delivery_count > 1
            or was_released(self.properties)
            or is_resent(self.properties)
        )

    @property
    def deaths(self) -> list[Death]:
        """Why the message became a dead letter, each time; the latest is last."""
        return deaths_of(self.properties, self.message_id)

    def _held_by(self) -> RabbitmqConsumer:
        if self._consumer is None:
            raise InvalidValue("this message is not held: it was acknowledged when it was taken")
        return self._consumer

    @property
    def is_lost(self) -> bool:
        """Whether the message has returned to its queue because its channel ended."""
        return self._consumer is not None and self._consumer.lost

    def ack(self) -> None:
        """Acknowledge without waiting."""
        self._held_by().ack(self._tag)

    async def ack_confirmed(self) -> None:
        """Acknowledge, and return when the broker has read it.

        Raises LeaseLost if the message is not held any more.
        """
        await self._held_by().ack_confirmed(self._tag)

    async def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        """Report a failure: deliver again after `delay` seconds; None uses the policy's backoff.

        After as many deliveries as the policy allows, the message goes to the dead letters.
        """
        if delay is not None:
            check_seconds("delay", delay, at_least=0.0)
        await self._held_by().settle_after(
            self._tag, self._retries.again(self, delay, _text_of(error))
        )

    async def reject(self, *, error: str | None = None) -> None:
        """Move the message to the dead letters at once."""
        await self._held_by().settle_after(
            self._tag, self._retries.bury(self, DeathReason.REJECTED, _text_of(error))
        )

    async def expire(self) -> None:
        """Treat the message as expired: the policy keeps it as a dead letter or drops it."""
        await self._held_by().settle_after(self._tag, self._retries.expire(self))

    async def release(self) -> None:
        """Return an unbegun message for immediate delivery to another consumer.

        A quorum queue counts a requeued message as failed, so there it is published again.
        """
        consumer = self._held_by()
        if consumer.is_classic:
            await consumer.requeue(self._tag)
        else:
            await consumer.settle_after(self._tag, self._retries.unbegun(self))


class RabbitmqBatch:
    """A batch of one message."""

    def __init__(self, message: RabbitmqMessage) -> None:
        self._message = message
        self.payloads = [message.payload]

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[RabbitmqMessage]:
        yield self._message

    def ack(self) -> None:
        self._message.ack()

    async def ack_confirmed(self) -> None:
        await self._message.ack_confirmed()

    async def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        await self._message.nack(delay=delay, error=error)


def _text_of(error: str | None) -> str | None:
    """Check an error text and shorten it to the maximum length."""
    if error is not None:
        check_text(error)
    return error[:ERROR_LENGTH_MAX] if error else None


# AMQP properties and headers of a message, and Tidegate's own headers.
#
# RabbitMQ has no message ids. A Tidegate put sets one, a 63-bit number, as the property
# `message_id`.
# For other messages the id is a hash of parts that are the same in each delivery.
#
# Headers that begin with `x-tidegate-` record how often a message has failed, when it expires and
# why it became a dead letter: RabbitMQ's queues do not.


Properties = spec.Basic.Properties

OURS = "x-tidegate-"
# Deliveries that were returned, before the message was published in this form.
DELIVERIES = f"{OURS}deliveries"
ERROR = f"{OURS}error"
# The message was delivered and returned unbegun.
RELEASED = f"{OURS}released"
# A number by which an application matches a message to a request.
CONTEXT = f"{OURS}context"
# Another copy may exist: the connection was lost before the confirmation, or a transfer between
# replicas was stopped halfway.
RESENT = f"{OURS}resent"
# Milliseconds since 1970.
EXPIRES_AT = f"{OURS}expires-at"
# Of a dead letter: the reason, its queue, and the time in milliseconds since 1970.
REASON = f"{OURS}reason"
DIED_IN = f"{OURS}queue"
DIED_AT = f"{OURS}died-at"
# Failures as JSON, the latest last.
FAILURES = f"{OURS}failures"
_FAILURES_MAX = 10
_FAILURE_LENGTH_MAX = 200
# RabbitMQ's reasons for dead-lettering.
_BY_THE_BROKER_BECAUSE = {
    "expired": DeathReason.EXPIRED,
    "rejected": DeathReason.REJECTED,
    "maxlen": DeathReason.OVERFLOW,
    "delivery_limit": DeathReason.DELIVERIES,
}
# Headers that RabbitMQ adds on a message's way; a republished message must not carry them.
_BY_THE_BROKER = (
    "x-death",
    "x-delivery-count",
    "x-acquired-count",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
)
# Further queues that already have their copies.
_COPIES = ("CC", "BCC")
_DELAY_QUEUE = re.compile(r"\.delay\.\d+\.\d+$")
_PERSISTENT = 2
# Characters of up to four bytes; so many fit into a frame for certain.
_LENGTH_THAT_FITS = 10_000
_SHORT_BYTES_MAX = 255
_MILLISECONDS_MAX = 2**32 - 1


def new_message_id() -> int:
    return secrets.randbits(62) + 1


def properties_of(
    message_id: int, special: MessageOptions, headers: dict[str, str] | None, now: float
) -> tuple[Properties, float]:
    """Return the properties of a put, and its delay in seconds."""
    attributes = special.attributes
    table: dict[str, Any] = dict(headers or {})
    for short in (*table, (attributes and attributes.content_type) or ""):
        if len(short) > _SHORT_BYTES_MAX or len(short.encode()) > _SHORT_BYTES_MAX:
            raise InvalidValue(
                f"a content type and the name of a header have up to {_SHORT_BYTES_MAX} bytes on "
                f"RabbitMQ, {short[:20]!r}… has more"
            )
    delay_s = special.delay_s or 0.0
    ttl_s = special.ttl_s
    if attributes is not None:
        if attributes.deliver_at is not None:
            delay_s = max(attributes.deliver_at - now, 0.0)
        if attributes.expires_at is not None:
            ttl_s = max(attributes.expires_at - now, 0.0)
    if special.context is not None:
        table[CONTEXT] = special.context
    if ttl_s is not None:
        table[EXPIRES_AT] = int((now + ttl_s) * 1e3)
    properties = Properties(
        content_type=None if attributes is None else attributes.content_type,
        headers=table or None,
        delivery_mode=_PERSISTENT,
        priority=special.priority,
        message_id=str(message_id),
        # In a delay queue, RabbitMQ's own expiration would apply there.
        expiration=None if ttl_s is None or delay_s else _milliseconds(ttl_s),
    )
    return properties, delay_s


def _milliseconds(seconds: float) -> str:
    return str(min(int(seconds * 1e3), _MILLISECONDS_MAX))


def republished(properties: Properties, message_id: int, changes: dict[str, Any]) -> Properties:
    """Return properties to publish a message again, with Tidegate headers changed.

    `message_id` is used if the message has no id of its own. A change to None keeps the header.
    """
    headers = dict(properties.headers or {})
    for name in (*_BY_THE_BROKER, *_COPIES):
        headers.pop(name, None)
    headers |= {name: value for name, value in changes.items() if value is not None}
    return Properties(
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        headers=headers or None,
        delivery_mode=_PERSISTENT,
        priority=properties.priority,
        correlation_id=properties.correlation_id,
        reply_to=properties.reply_to,
        message_id=properties.message_id or str(message_id),
        timestamp=properties.timestamp,
        message_type=properties.message_type,
        app_id=properties.app_id,
    )


def header_bytes(properties: Properties) -> int:
    """Return the size of the properties and headers; a rough lower value if all surely fits."""
    table = properties.headers or {}
    if all(isinstance(value, str) for value in table.values()):
        length = sum(map(len, table)) + sum(len(str(value)) for value in table.values())
        if length < _LENGTH_THAT_FITS:
            return length
    return len(ContentHeader(properties=properties).marshal())


def without_failures(properties: Properties) -> Properties:
    """Remove the failure texts from the headers."""
    headers = properties.headers or {}
    properties.headers = {
        name: value for name, value in headers.items() if name not in (ERROR, FAILURES)
    }
    return properties


def marked_resent(properties: Properties) -> Properties:
    """Mark a message of which another copy may exist."""
    properties.headers = {**(properties.headers or {}), RESENT: True}
    return properties


def is_resent(properties: Properties) -> bool:
    return RESENT in (properties.headers or {})


def message_id_of(properties: Properties, payload: bytes) -> int:
    text = properties.message_id
    if text and text.isascii() and text.isdigit() and 0 < int(text) < 2**63:
        return int(text)
    return hash63(text.encode() if text else repr(properties.timestamp).encode() + payload)


def hash63(data: bytes) -> int:
    """Return a 63-bit hash that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def context_of(properties: Properties) -> int | None:
    """Return the number that matches a reply to its request; None if it asks for no reply."""
    if not properties.reply_to:
        given = (properties.headers or {}).get(CONTEXT)
        return given if isinstance(given, int) else None
    text = properties.correlation_id or ""
    if text.isascii() and text.isdigit() and int(text) < 2**63:
        return int(text)
    return hash63(text.encode())


def delivery_count_of(properties: Properties, *, redelivered: bool) -> int:
    """Return the known number of deliveries, this one included.

    A quorum queue counts the messages that returned by themselves. A classic queue only flags them,
    which counts as one.
    """
    headers = properties.headers or {}
    returned = _whole(headers.get("x-delivery-count")) or int(redelivered)
    return _whole(headers.get(DELIVERIES)) + returned + 1


def was_released(properties: Properties) -> bool:
    return bool((properties.headers or {}).get(RELEASED))


def failures_of(properties: Properties) -> list[Failure]:
    text = (properties.headers or {}).get(FAILURES)
    try:
        return msgspec.json.decode(text, type=list[Failure]) if isinstance(text, str) else []
    except msgspec.DecodeError:
        return []


def failures_with(properties: Properties, reason: str, error: str | None) -> str:
    """Return the header of failures with one more: the last ten, each shortened."""
    short = error[:_FAILURE_LENGTH_MAX] if error else None
    failures = [*failures_of(properties), Failure(time.time(), reason, short)]
    return msgspec.json.encode(failures[-_FAILURES_MAX:]).decode()


def deaths_of(properties: Properties, message_id: int) -> list[Death]:
    """Return how a dead letter came to be one, whether Tidegate or RabbitMQ moved it."""
    headers: dict[str, Any] = dict(properties.headers or {})
    failures = failures_of(properties)
    deliveries = _whole(headers.get(DELIVERIES))
    if headers.get(REASON) in list(DeathReason):
        at = _whole(headers.get(DIED_AT)) / 1e3
        queue, error = str(headers.get(DIED_IN)), _text_or_none(headers.get(ERROR))
        reason = DeathReason(headers[REASON])
        return [Death(queue, reason, error, deliveries, at, message_id, failures)]
    deaths = headers.get("x-death")
    if not isinstance(deaths, list):
        return []
    # RabbitMQ's latest entry is first. Expiry in a Tidegate delay queue is no death.
    return [
        Death(
            str(death.get("queue")),
            _BY_THE_BROKER_BECAUSE[death["reason"]],
            None,
            deliveries + _whole(death.get("count")),
            death["time"].timestamp() if isinstance(death.get("time"), datetime) else 0.0,
            message_id,
            failures,
        )
        for death in reversed(deaths)
        # Any producer can write such a header.
        if isinstance(death, dict)
        and isinstance(death.get("reason"), str)
        and death["reason"] in _BY_THE_BROKER_BECAUSE
        and not _DELAY_QUEUE.search(str(death.get("queue")))
    ]


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int:
    """Return a count from a header; 0 if it is no number or negative.

    Any producer can write the header, and a negative count would never reach a limit.
    """
    return max(value, 0) if isinstance(value, int) else 0


def user_headers(properties: Properties) -> dict[str, str]:
    """Return the headers that applications set, as text."""
    return {
        name: _text(value)
        for name, value in (properties.headers or {}).items()
        if isinstance(value, str | bytes | bytearray | int | float)
        and not name.startswith(OURS)
        and name not in _BY_THE_BROKER
    }


def _text(value: str | bytes | bytearray | float) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)


def priority_of(properties: Properties) -> int:
    priority = properties.priority
    if priority is None:
        return PRIORITY_DEFAULT
    return min(max(priority, PRIORITY_LOWEST), PRIORITY_HIGHEST)


def expires_at_of(properties: Properties) -> float | None:
    at = (properties.headers or {}).get(EXPIRES_AT)
    return at / 1e3 if isinstance(at, int) else None


def is_expired(properties: Properties) -> bool:
    """Return whether a message expired where RabbitMQ does not check: delayed or after a failure.

    A dead letter never counts as expired: it may be one because of its expiry.
    """
    at = expires_at_of(properties)
    return at is not None and at <= time.time() and not deaths_of(properties, 0)
