"""Messages of RabbitMQ as an application sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aiormq.abc import DeliveredMessage

from tidegate.adapters.rabbitmq import properties as p
from tidegate.client.message import ERROR_LENGTH_MAX
from tidegate.client.options import check_seconds, check_text
from tidegate.core.errors import InvalidValue
from tidegate.core.model import Death, DeathReason

if TYPE_CHECKING:
    from tidegate.adapters.rabbitmq.leg import Leg
    from tidegate.adapters.rabbitmq.retries import Retries


class RabbitmqMessage:
    """One delivered message."""

    __slots__ = ("_by_the_broker", "_leg", "_retries", "_tag", "payload", "properties", "queue")

    def __init__(
        self, delivered: DeliveredMessage, queue: str, leg: Leg | None, retries: Retries
    ) -> None:
        self.payload: bytes = delivered.body
        self.properties: p.Properties = delivered.header.properties
        self.queue = queue
        self._tag = delivered.delivery_tag or 0
        self._by_the_broker = bool(delivered.redelivered)
        self._leg = leg
        self._retries = retries

    def __repr__(self) -> str:
        return f"<RabbitmqMessage {self.message_id} of {len(self.payload)} bytes>"

    @property
    def message_id(self) -> int:
        return p.message_id_of(self.properties, self.payload)

    @property
    def context(self) -> int | None:
        return p.context_of(self.properties)

    @property
    def priority(self) -> int:
        return p.priority_of(self.properties)

    @property
    def content_type(self) -> str | None:
        return self.properties.content_type

    @property
    def headers(self) -> dict[str, str]:
        return p.user_headers(self.properties)

    @property
    def expires_at(self) -> float | None:
        """Seconds since 1970; None means that the message does not expire."""
        return p.expires_at_of(self.properties)

    @property
    def delivery_count(self) -> int:
        """Number of deliveries, this one included, as far as RabbitMQ reports them."""
        return p.delivery_count_of(self.properties, redelivered=self._by_the_broker)

    @property
    def redelivered(self) -> bool:
        """Whether it may have been delivered before; never False if it was."""
        return (
            self._by_the_broker
            or self.delivery_count > 1
            or p.was_released(self.properties)
            or p.is_resent(self.properties)
        )

    @property
    def deaths(self) -> list[Death]:
        """How a dead letter came to be one, the latest last."""
        return p.deaths_of(self.properties, self.message_id)

    def _held_by(self) -> Leg:
        if self._leg is None:
            raise InvalidValue("this message is not held: it was acknowledged when it was taken")
        return self._leg

    @property
    def is_lost(self) -> bool:
        """Whether it has returned to its queue because its channel ended."""
        return self._leg is not None and self._leg.lost

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
        leg = self._held_by()
        if leg.is_classic:
            await leg.requeue(self._tag)
        else:
            await leg.settle_after(self._tag, self._retries.unbegun(self))


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
