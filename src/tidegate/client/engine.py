"""The port of an engine: what an App, its workers and its loops ask of whatever holds messages.

    tidegate://…    Tidegate's own nodes: client.Client
    amqp://…        RabbitMQ: adapters/rabbitmq

`connect` finds the engine of a URL by its scheme among the entry points of the group
`tidegate.engines`, so an engine lives above this room and is imported only when it is used. What
an engine cannot do it refuses at the call, with InvalidValue that says what to do instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Literal, Protocol, Self, Unpack

from tidegate.client.options import PutOptions
from tidegate.core.model import Death, QueuePolicy

ENGINES = "tidegate.engines"


class EngineMessage(Protocol):
    """One delivered message."""

    payload: bytes

    @property
    def message_id(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def context(self) -> int | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def content_type(self) -> str | None: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def delivery_count(self) -> int: ...
    @property
    def redelivered(self) -> bool: ...
    @property
    def deaths(self) -> list[Death]:
        """Of a dead letter: how it came to be one, the latest last."""

    def ack(self) -> None:
        """Acknowledge, without waiting."""

    async def ack_confirmed(self) -> None:
        """Acknowledge, and return when the broker has it; LeaseLost if it was no longer ours."""

    async def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        """It failed: deliver it again, flagged, after `delay` or as the queue backs off."""

    async def reject(self, *, error: str | None = None) -> None:
        """It is hopeless: to the dead letters."""

    async def release(self) -> None:
        """It was not begun: to somebody else at once."""


class EngineSubscription(Protocol):
    """Messages pushed to a consumer, as many at a time as its prefetch says."""

    prefetch: int

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...
    def __aiter__(self) -> AsyncIterator[Any]: ...

    def batches(self) -> AsyncIterator[Any]:
        """Messages as they come together, each batch with a length, an order and an `ack`.

        Whoever works without async iterates over these; a batch may be one message.
        """

    async def set_prefetch(self, prefetch: int) -> None:
        """Live: from now on so many may be on their way or in our hands."""

    async def drain(self) -> None:
        """Take no more: what was not looked at goes back; what was taken stays ours."""

    @property
    def delivered(self) -> int:
        """Messages that have come to it since it began."""

    @property
    def held(self) -> int:
        """Messages that lie in it, not yet taken by anybody."""

    @property
    def interruptions(self) -> int:
        """How often it has lost what it stood on: its connection, or its queue's owner."""

    async def waiting(self) -> int | None:
        """Messages that are ready to be delivered where it stands; None: not known."""

    @property
    def is_live(self) -> bool:
        """Whether messages can come to it now; False while its connection is broken."""

    @property
    def is_prefetch_costly(self) -> bool:
        """Whether another prefetch costs more than a word to the broker."""


class EngineClient(Protocol):
    """A connection to an engine."""

    # What it is called where models of consumers say where they were measured.
    @property
    def engine_name(self) -> str: ...

    async def open(self) -> Self: ...
    async def close(self) -> None: ...

    async def queue(self, name: str) -> Any:
        """Look a queue up; QueueNotExisting."""

    async def create_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exist_ok: bool = False,
        policy: QueuePolicy | None = None,
    ) -> Any: ...

    async def delete_queue(self, queue: str, /) -> None:
        """With what is in it; who consumes from it is told QueueNotExisting."""

    def adopt_policy(self, queue: str, policy: QueuePolicy | None) -> None:
        """What a worker declares of its queue, for engines that keep no policies themselves."""

    def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> Awaitable[int]:
        """Await it: returns when it is safe, with an id of it."""

    def subscribe(
        self,
        queue: str,
        *,
        prefetch: int = ...,
        ack: Literal["explicit", "automatic"] = ...,
    ) -> EngineSubscription: ...

    async def request(
        self, queue: str, payload: bytes, *, timeout: float = 30.0, content_type: str | None = None
    ) -> Any: ...

    def reply(
        self, message: Any, payload: bytes, *, content_type: str | None = None
    ) -> Awaitable[Any]: ...
