"""A subscription on Redis: takes as many messages as there is room for, when there is news of any.

Redis pushes nothing that must not be lost, so we take; the prefetch is ours to keep. Each look also
brings in what is due, and what was held by whoever has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

import msgspec

from tidegate.client.message import check_count
from tidegate.core.errors import InvalidValue, RetryLater, TidegateError
from tidegate.core.model import Death
from tidegate_redis import scripts
from tidegate_redis.message import Envelope, RedisBatch, RedisMessage

if TYPE_CHECKING:
    from tidegate_redis.client import RedisClient

# Delays end and consumers die without news.
LOOK_S = 0.05
_envelopes = msgspec.msgpack.Decoder(Envelope)
_deaths = msgspec.json.Decoder(list[Death])


class RedisSubscription:
    """Use with `async with`, then iterate."""

    is_prefetch_costly = False

    def __init__(
        self, client: RedisClient, queue: str, prefetch: int, *, number: int, automatic: bool
    ) -> None:
        self._client = client
        self._link = client.link
        self.queue = queue
        self.prefetch = prefetch
        self._number = number
        self._automatic = automatic
        self.delivered = 0
        self._arrived: deque[RedisMessage] = deque()
        # By id, with what was taken: everything that counts against the prefetch.
        self._held: dict[int, RedisMessage] = {}
        self._settling: set[asyncio.Task[object]] = set()
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._taking = asyncio.Lock()
        self._failure: TidegateError | None = None
        self._drained = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._look()
        self._task = self._client.spawn(self._keep_looking())
        self._client.subscriptions.add(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.subscriptions.discard(self)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        self._news.set()
        if self._link.token:
            await self.drain()
        if self._settling:
            await asyncio.wait(self._settling)
        if self._link.token:
            # If Redis is gone, others see that we are.
            with contextlib.suppress(TidegateError):
                await self._link.run(scripts.INHERIT, self.queue, self._holder())

    # Taking

    def wake(self) -> None:
        """There may be something."""
        self._wake.set()

    async def _keep_looking(self) -> None:
        loop = asyncio.get_running_loop()
        inherited_at = loop.time()
        try:
            while True:
                self._wake.clear()
                with contextlib.suppress(RetryLater):
                    await self._look()
                    if loop.time() - inherited_at >= LOOK_S:
                        inherited_at = loop.time()
                        await self._inherit()
                # Not wait_for, which forgets a cancellation that comes together with the news.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wake.wait()
        except TidegateError as failure:
            self._failure = failure
            self._news.set()

    async def _look(self) -> None:
        async with self._taking:
            await self._link.ready()
            self._forget_lost()
            room = 0 if self._drained else max(self.prefetch - len(self._held), 0)
            holder = self._holder()
            rows = await self._link.run(
                scripts.TAKE, self.queue, holder, room, int(self._automatic)
            )
            if holder != self._holder() and not self._automatic:
                # The connection broke in between: what was taken under its name is others'.
                return
            for message_id, body, count, flagged, deaths in rows:
                message = RedisMessage(
                    self.queue,
                    _envelopes.decode(body),
                    int(message_id),
                    delivery_count=count,
                    flagged=bool(flagged),
                    deaths=_deaths.decode(deaths),
                    subscription=None if self._automatic else self,
                    holder=holder,
                )
                self._held[message.message_id] = message
                self._arrived.append(message)
            self.delivered += len(rows)
        if rows:
            self._news.set()

    def _holder(self) -> str:
        return f"{self._link.token}/{self._number}"

    def _forget_lost(self) -> None:
        """What was taken over a connection that broke has gone back, unless it was ours at once."""
        if self._automatic:
            return
        holder = self._holder()
        self._arrived = deque(one for one in self._arrived if one.holder == holder)
        self._held = {key: one for key, one in self._held.items() if one.holder == holder}

    async def _inherit(self) -> None:
        """What consumers held that are gone; who holds was connected before we look who is."""
        held = await self._link.command("HVALS", f"tidegate:held:{self.queue}")
        holders = {one.decode() for one in held}
        mine = f"{self._link.token}/"
        if all(one.startswith(mine) for one in holders):
            return
        living = await self._link.living()
        gone = [one for one in holders if one.partition("/")[0] not in living]
        if gone:
            await self._link.run(scripts.INHERIT, self.queue, *gone)
            self.wake()

    async def __aiter__(self) -> AsyncIterator[RedisMessage]:
        """Message by message; several tasks may share a subscription."""
        while True:
            while self._arrived:
                message = self._arrived.popleft()
                if self._automatic:
                    del self._held[message.message_id]
                    self.wake()
                yield message
            if self._failure is not None:
                raise self._failure
            if self._task is None:
                raise InvalidValue("the subscription is not open: `async with mq.subscribe(...)`")
            self._news.clear()
            await self._news.wait()

    async def batches(self) -> AsyncIterator[RedisBatch]:
        """Messages as they come together: here one by one."""
        async for message in self:
            yield RedisBatch(message)

    # Settling

    def settle_soon(self, message: RedisMessage, script: str) -> None:
        task = asyncio.get_running_loop().create_task(self._settle_quietly(message, script))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle_quietly(self, message: RedisMessage, script: str) -> None:
        with contextlib.suppress(TidegateError):
            await self.settle(message, script)

    async def settle(self, message: RedisMessage, script: str, *more: object) -> bool:
        """False: it was not ours any more."""
        done = await self._link.run(script, self.queue, message.message_id, message.holder, *more)
        if self._held.get(message.message_id) is message:
            del self._held[message.message_id]
        self.wake()
        return bool(done)

    # What the prefetch loop steers and measures by

    async def set_prefetch(self, prefetch: int) -> None:
        check_count("prefetch", prefetch)
        self.prefetch = prefetch
        self.wake()

    async def drain(self) -> None:
        """Take no more: what was not looked at goes back; what was taken stays ours."""
        self._drained = True
        async with self._taking:
            unbegun, self._arrived = self._arrived, deque()
        if self._automatic:
            return
        # If it fails, the connection is gone, and everything has gone back.
        with contextlib.suppress(TidegateError):
            for message in unbegun:
                await message.release()

    @property
    def held(self) -> int:
        return len(self._arrived)

    async def waiting(self) -> int | None:
        return int(await self._link.run(scripts.LOOK, self.queue))

    @property
    def is_live(self) -> bool:
        return bool(self._link.token)
