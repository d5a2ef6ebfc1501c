"""The interfaces that an engine implements for `App`, its workers and its control loops.

    tidegate://…    Tidegate's own nodes: `Client`
    amqp://…        RabbitMQ, with the extra `rabbitmq`

`connect` finds an engine by URL scheme among the entry points of the group `tidegate.engines`. The
client package therefore never imports an engine. If an engine cannot do a call, it raises
`InvalidValue` with an alternative.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Literal, Protocol, Self, Unpack

from tidegate.client.message import PutOptions
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
        """The history of a dead letter, the latest death last; empty for other messages."""

    def ack(self) -> None:
        """Acknowledge the message without waiting."""

    async def ack_confirmed(self) -> None:
        """Acknowledge the message and wait for the broker; `LeaseLost` if it was not held."""

    async def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        """Return the message as failed; the broker delivers it again after `delay` seconds.

        `None` means the delay of the queue's policy. `error` is kept with the message.
        """

    async def reject(self, *, error: str | None = None) -> None:
        """Move the message to the dead letters at once."""

    async def release(self) -> None:
        """Return a message that was not begun; the broker delivers it again at once."""


class EngineSubscription(Protocol):
    """Messages that the broker pushes to a consumer, limited by its prefetch."""

    prefetch: int

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...
    def __aiter__(self) -> AsyncIterator[Any]: ...

    def batches(self) -> AsyncIterator[Any]:
        """Iterate over batches of messages; a batch has a length, an order and an `ack` method.

        The blocking API iterates over batches. A batch may hold a single message.
        """

    async def set_prefetch(self, prefetch: int) -> None:
        """Change the prefetch of the running subscription."""

    async def drain(self) -> None:
        """Stop receiving, and return the messages that the application has not taken.

        Taken messages stay held until the application settles them.
        """

    @property
    def delivered(self) -> int:
        """Messages received since the subscription began."""

    @property
    def held(self) -> int:
        """Messages received but not yet taken by the application."""

    @property
    def interruptions(self) -> int:
        """How often the subscription has lost its connection or its queue's owner."""

    async def waiting(self) -> int | None:
        """Return the number of messages ready in the broker; `None` if it is not known."""

    @property
    def is_live(self) -> bool:
        """Whether messages can arrive now; `False` while the connection is broken."""

    @property
    def is_prefetch_costly(self) -> bool:
        """Whether a change of prefetch costs more than one small packet."""


class EngineClient(Protocol):
    """A connection to an engine."""

    # The name of the engine in models of consumers, which record where they were measured.
    @property
    def engine_name(self) -> str: ...

    async def open(self) -> Self: ...
    async def close(self) -> None: ...

    async def queue(self, name: str) -> Any:
        """Return a queue; raise `QueueNotExisting` if there is none."""

    async def create_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exist_ok: bool = False,
        policy: QueuePolicy | None = None,
    ) -> Any: ...

    async def delete_queue(self, queue: str, /) -> None:
        """Delete a queue with its messages; its consumers fail with `QueueNotExisting`."""

    def adopt_policy(self, queue: str, policy: QueuePolicy | None) -> None:
        """Note the policy that a worker declares, for engines that do not store policies."""

    def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> Awaitable[int]:
        """Put a message; the awaited result is an id once the message is safe."""

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
