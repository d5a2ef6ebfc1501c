"""A worker at work: takes messages, has as many in hand as it may, and settles each one.

Strategy: a message is taken only when a slot is free, so what was not begun still lies in the
subscription and can be given back as untouched. Each message is a task; what its function returns
or raises decides what becomes of it:

    returned            a reply if one is asked for, then the ack
    Reject              to the dead letters
    Retry(after=30)     again in 30 seconds
    anything else       again, as the queue backs off
    cut off at the end  again, at once

A shift survives outages of any length; it ends when told to, or when its queue is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tidegate.client import tracing
from tidegate.client.closing import Closing
from tidegate.client.engine import EngineClient, EngineMessage, EngineSubscription
from tidegate.client.handling import Handling
from tidegate.client.payloads import encoded
from tidegate.client.steered_prefetch import OnStep, SteeredPrefetch
from tidegate.client.verdict import Reject, Retry, error_text, said_by
from tidegate.core.errors import RetryLater, TidegateError
from tidegate.core.prefetch import PrefetchGoal

log = logging.getLogger(__name__)

_OUTAGE_S = 1.0
# How long what was cut off may take to clean up.
_CUT_OFF_S = 2.0
CUT_OFF = "the worker was stopped before it had finished"


class Shift:
    """One queue, served until `closing` says otherwise."""

    def __init__(
        self,
        client: EngineClient,
        queue: str,
        call: Callable[[EngineMessage], Awaitable[object]],
        closing: Closing,
        *,
        concurrency: int,
        prefetch: int,
        goal: PrefetchGoal | None = None,
        on_step: OnStep | None = None,
    ) -> None:
        self._client = client
        self._queue = queue
        self._call = tracing.traced_handler(call)
        self._closing = closing
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._running: set[asyncio.Task[None]] = set()
        self._slot_freed = asyncio.Event()
        self._in_outage = False
        self._finished = False
        self.subscribed = asyncio.Event()
        # While there is one: for those who look at it or steer it.
        self.subscription: EngineSubscription | None = None
        # Of a prefetch that has a goal.
        self._handling: Handling | None = None
        self._steered: SteeredPrefetch | None = None
        if goal is not None:
            _tell_doubts(goal, queue, client.engine_name)
            self._handling = Handling(concurrency, asyncio.get_running_loop().time)
            self._steered = SteeredPrefetch(
                queue,
                goal,
                start=prefetch,
                handling=self._handling,
                on_step=on_step,
            )

    async def run(self) -> None:
        """Work until the closing is asked for and everything begun has ended."""
        try:
            while not self._closing.asked.is_set():
                try:
                    await self._work()
                except RetryLater as outage:
                    self._tell_outage(outage)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._closing.asked.wait(), _OUTAGE_S)
        finally:
            # Whoever cannot go on takes the others along, in good order.
            self._closing.begin()
            await self._finish()

    def _tell_outage(self, outage: RetryLater) -> None:
        if not self._in_outage:
            self._in_outage = True
            extra = {"queue": self._queue, "reason": str(outage)}
            log.warning("no messages until the connection is back", extra=extra)

    async def _work(self) -> None:
        if self._steered is not None:
            # After an outage it goes on where it was.
            self._prefetch = self._steered.steering.tick()
        subscription = self._client.subscribe(self._queue, prefetch=self._prefetch)
        async with subscription:
            self.subscription = subscription
            self.subscribed.set()
            self._in_outage = False
            log.info(
                "working",
                extra={
                    "queue": self._queue,
                    "concurrency": self._concurrency,
                    "prefetch": self._prefetch,
                },
            )
            async with (
                _cancelled_at_the_end(self._steer(subscription)),
                _cancelled_at_the_end(self._take(subscription)) as taking,
            ):
                await _first_of(taking, self._closing.asked)
            if self._closing.asked.is_set():
                await subscription.drain()
                await self._finish()
            else:
                await taking  # it failed: raise that

    async def _steer(self, subscription: EngineSubscription) -> None:
        if self._steered is None:
            return
        try:
            await self._steered.run(subscription)
        except Exception:
            # Messages are worth more than their pace.
            log.exception("the prefetch stays as it is", extra={"queue": self._queue})

    async def _take(self, subscription: EngineSubscription) -> None:
        stream = aiter(subscription)
        while True:
            while len(self._running) >= self._concurrency:
                self._slot_freed.clear()
                await self._slot_freed.wait()
            # Cancelled here it has taken nothing; from here to the task nothing waits.
            message = await anext(stream)
            task = asyncio.get_running_loop().create_task(self._handle(message))
            self._running.add(task)
            if self._handling is not None:
                self._handling.began()
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slot_freed.set()
        if self._handling is not None:
            self._handling.ended()
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("a message was not settled", exc_info=failure, extra={"queue": self._queue})

    async def _finish(self) -> None:
        """Wait for what runs; at the deadline cut it off."""
        if not self._running or self._finished:
            return
        ended = asyncio.ensure_future(asyncio.wait(set(self._running)))
        await _first_of(ended, self._closing.over)
        self._finished = True
        if not self._running:
            return
        log.warning(
            "stopped before everything had finished: the rest goes back",
            extra={"queue": self._queue, "messages": len(self._running)},
        )
        self._closing.has_cut_off = True
        for task in self._running:
            task.cancel()
        # Who does not listen to that loses its message with the subscription.
        await asyncio.wait({ended}, timeout=_CUT_OFF_S)

    # One message

    async def _handle(self, message: EngineMessage) -> None:
        try:
            settle = await self._outcome(message)
        except asyncio.CancelledError as cancelled:
            if self._closing.over.is_set():
                # Not its fault: at once, to somebody who has the time.
                settle = message.nack(delay=0.0, error=CUT_OFF)
            else:
                settle = message.nack(error=error_text(cancelled))
        if settle is None:
            message.ack()
            return
        try:
            await settle
        except TidegateError as lost:
            # With its connection, or its lease: it comes again by itself.
            log.info(
                "a message had gone back already",
                extra={**self._about(message), "reason": str(lost)},
            )

    async def _outcome(self, message: EngineMessage) -> Awaitable[None] | None:
        """Call the function; how to give the message back, None when it is done."""
        try:
            result = await self._call(message)
            if result is not None and message.context is not None:
                # Before the ack: a reply may come twice, but not never.
                answer = encoded(result)
                await self._client.reply(message, answer.payload, content_type=answer.content_type)
        except Reject as hopeless:
            self._tell("a message was rejected", message, hopeless)
            return message.reject(error=said_by(hopeless) or None)
        except Retry as again:
            self._tell("a message is to be tried again", message, again)
            return message.nack(delay=again.after, error=said_by(again) or None)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # A panic of a library is no Exception, and yet no reason to hold the message for ever.
            self._tell("a message failed", message, error, traceback=True)
            return message.nack(error=error_text(error))
        return None

    def _about(self, message: EngineMessage) -> dict[str, Any]:
        return {
            "queue": self._queue,
            "message_id": message.message_id,
            "delivery_count": message.delivery_count,
        }

    def _tell(
        self, event: str, message: EngineMessage, error: BaseException, *, traceback: bool = False
    ) -> None:
        extra = self._about(message) | {"reason": error_text(error)}
        log.warning(event, exc_info=error if traceback else None, extra=extra)


def _tell_doubts(goal: PrefetchGoal, queue: str, engine: str) -> None:
    """A model of something else may serve well, and may not."""
    doubts = "" if goal.model is None else goal.model.doubts(queue, engine)
    if doubts:
        log.warning("a model of something else", extra={"queue": queue, "reason": doubts})


async def _first_of(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    """Wait until a task has ended or an event has come."""
    async with _cancelled_at_the_end(event.wait()) as coming:
        await asyncio.wait({task, coming}, return_when=asyncio.FIRST_COMPLETED)


@contextlib.asynccontextmanager
async def _cancelled_at_the_end(work: Any) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen, whether anybody raises it or not
