"""The client of Redis: the port of an engine, and what of the rest of the API Redis can do."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Coroutine, Iterable
from typing import Any, Literal, NamedTuple, NoReturn, Self, Unpack

import msgspec

from tidegate.client.client import Client
from tidegate.client.message import (
    PutOptions,
    check_count,
    check_seconds,
    checked_options,
    checked_payload,
)
from tidegate.core.errors import InvalidValue, NoReply, QueueNameNotUnique
from tidegate.core.model import DEFAULT_POLICY, PRIORITY_DEFAULT, QueuePolicy
from tidegate_redis import scripts
from tidegate_redis.link import Link
from tidegate_redis.message import Envelope, RedisMessage
from tidegate_redis.subscription import RedisSubscription

_REFUSED = {
    "receiver": "give each receiver a queue of its own",
    "dedup_id": "let the handler recognise duplicates, by message.message_id",
    "group": "use a queue with one worker for each",
    "tenant": "give each tenant a queue of its own",
}


class NotOnRedis(InvalidValue, AttributeError):
    """A call of the native client that Redis has nothing for."""


class RedisQueue(NamedTuple):
    """A queue, and how many messages wait in it."""

    name: str
    messages: int


class RedisClient:
    """Get one from `async with tidegate.connect("redis://…") as mq`."""

    engine_name = "redis"

    def __init__(self, url: str, *, reconnect_s: float, **login: str | None) -> None:
        self.link = Link(url, reconnect_s=reconnect_s, **login)
        self.subscriptions: set[RedisSubscription] = set()
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[Envelope]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> Self:
        await self.link.open(self._heard, self._answered)
        return self

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.link.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for as long as the client lives."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(Client, name):
            raise NotOnRedis(f"{name} is for tidegate:// only, Redis has nothing for it")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _heard(self, queue: str) -> None:
        for subscription in self.subscriptions:
            if subscription.queue == queue:
                subscription.wake()

    # Queues

    async def queue(self, name: str) -> RedisQueue:
        return RedisQueue(name, int(await self.link.run(scripts.LOOK, name)))

    async def create_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exist_ok: bool = False,
        policy: QueuePolicy | None = None,
    ) -> RedisQueue:
        if not durable:
            raise InvalidValue("transient queues are for tidegate:// only: Redis keeps all or none")
        document = msgspec.json.encode(policy or DEFAULT_POLICY)
        made = await self.link.command("HSETNX", "tidegate:queues", name, document)
        if not made and not exist_ok:
            raise QueueNameNotUnique(f"there is a queue {name!r} already")
        return RedisQueue(name, 0)

    async def delete_queue(self, name: str) -> None:
        await self.link.run(scripts.DELETE, name)

    def adopt_policy(self, queue: str, policy: QueuePolicy | None) -> None:
        """Redis keeps policies with their queues."""

    # Putting

    async def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> int:
        """Put a message; returns its id when Redis has it on disk (`appendfsync always`)."""
        return await self._put(queue, payload, options)

    async def _put(
        self, queue: str, payload: bytes, options: PutOptions, reply_to: str | None = None
    ) -> int:
        special = checked_options(options)
        for name, instead in _REFUSED.items():
            if options.get(name) is not None:
                raise InvalidValue(f"{name}= is for tidegate:// only: on Redis {instead}")
        attributes = special.attributes
        envelope = Envelope(
            checked_payload(payload),
            (attributes and attributes.headers) or {},
            attributes and attributes.content_type,
            special.context,
            special.priority,
            reply_to,
        )
        due = _when_us(special.delay_s, attributes and attributes.deliver_at)
        ends = _when_us(special.ttl_s, attributes and attributes.expires_at)
        body = msgspec.msgpack.encode(envelope)
        return int(
            await self.link.run_resent(scripts.PUT, queue, body, special.priority, due, ends)
        )

    async def put_many(
        self, queue: str, payloads: Iterable[bytes], *, priority: int = PRIORITY_DEFAULT
    ) -> list[int]:
        return [await self.put(queue, payload, priority=priority) for payload in payloads]

    # Taking

    def subscribe(
        self,
        queue: str,
        *,
        prefetch: int = 200,
        ack: Literal["explicit", "automatic"] = "explicit",
        order: str = "priority",
        replica: int | None = None,
    ) -> RedisSubscription:
        check_count("prefetch", prefetch)
        if order != "priority" or replica is not None:
            raise InvalidValue("order= and replica= are for tidegate:// only")
        return RedisSubscription(
            self, queue, prefetch, number=next(self._numbers), automatic=ack == "automatic"
        )

    # Asking

    async def request(
        self, queue: str, payload: bytes, *, timeout: float = 30.0, content_type: str | None = None
    ) -> RedisMessage:
        """Put a request, wait for the reply; NoReply when none comes in time."""
        check_seconds("timeout", timeout, at_least=0.0)
        context = secrets.randbits(62)
        answer: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
        self._questions[context] = answer
        options: PutOptions = {"context": context, "content_type": content_type}
        try:
            async with asyncio.timeout(timeout):
                await self._put(queue, payload, options, self.link.channel)
                return RedisMessage(queue, await answer)
        except TimeoutError:
            raise NoReply(f"no reply from {queue!r} within {timeout:g} s") from None
        finally:
            del self._questions[context]

    async def reply(
        self, message: RedisMessage, payload: bytes, *, content_type: str | None = None
    ) -> int:
        """Answer a request, to its sender only; how many heard it."""
        if message.context is None:
            raise InvalidValue("this message asks for no reply")
        if message.reply_to is None:
            return 0
        answer = Envelope(payload, content_type=content_type, context=message.context)
        return int(
            await self.link.command("PUBLISH", message.reply_to, msgspec.msgpack.encode(answer))
        )

    def _answered(self, body: bytes) -> None:
        envelope = msgspec.msgpack.decode(body, type=Envelope)
        question = self._questions.get(envelope.context or 0)
        if question is not None and not question.done():
            question.set_result(envelope)


def _when_us(from_now_s: float | None, at_s: float | None) -> int:
    """As scripts take a time: 0 is none, what is negative is so long from now."""
    if at_s is not None:
        return round(at_s * 1e6)
    return -round((from_now_s or 0.0) * 1e6)
