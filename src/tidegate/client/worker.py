"""The runner of one worker: takes messages of a queue, calls the handler, and settles each message.

Theory of operation. A `WorkerRunner` subscribes to one queue. It takes a message from the
subscription only when one of its `concurrency` slots is free. So all messages that are not begun
are still in the subscription, and `drain` can return them as never delivered. Each taken message is
handled by a task of its own. The result of the handler settles the message:

    returns              send a reply if one is asked for, then acknowledge
    Reject               move to the dead letters
    Retry(after=30)      deliver again in 30 seconds
    another exception    deliver again, with the delay of the queue's policy
    stopped at shutdown  deliver again at once

The reply is stored before the request is acknowledged. So a crash may repeat a reply, and never
loses one.

Outages: when the subscription raises `RetryLater`, the runner subscribes again every second, for
any length of time. It gives up on other errors, such as a deleted queue.

Shutdown: `GracefulShutdown` is shared by all runners of an app.

- asked: each runner stops taking, returns untouched messages, and waits for its running tasks.
- over (after `drain_s`, or when asked twice): each runner cancels its running tasks and returns
  their messages. After 2 s it ends in any case. Messages of tasks that ignore the cancellation
  return with the subscription. Threads cannot be cancelled and end with the process.

A runner that ends for any reason begins the shutdown of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from queue import Empty, SimpleQueue
from typing import Any

from tidegate.client import tracing
from tidegate.client.engine import EngineClient, EngineMessage, EngineSubscription
from tidegate.client.handler import HandlerMeter, Reject, Retry, error_text, exception_text
from tidegate.client.message import encode_payload
from tidegate.client.prefetch import AutomaticPrefetch, OnStep
from tidegate.core.errors import RetryLater, TidegateError
from tidegate.core.prefetch import PrefetchGoal

log = logging.getLogger(__name__)

_OUTAGE_S = 1.0
# How long cancelled handlers may take to clean up, in seconds.
_CUT_OFF_S = 2.0
STOPPED_TEXT = "the worker was stopped before it had finished"


class WorkerRunner:
    """Runs a handler for every message of one queue until it is asked to stop."""

    def __init__(
        self,
        client: EngineClient,
        queue: str,
        call: Callable[[EngineMessage], Awaitable[object]],
        closing: GracefulShutdown,
        *,
        concurrency: int,
        prefetch: int,
        goal: PrefetchGoal | None = None,
        on_step: OnStep | None = None,
    ) -> None:
        self._client = client
        self._queue = queue
        self._call = tracing.traced_handler(call)
        self._shutdown = closing
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._running: set[asyncio.Task[None]] = set()
        self._slot_freed = asyncio.Event()
        self._in_outage = False
        self._finished = False
        self.subscribed = asyncio.Event()
        # `None` during an outage. For `App.subscription` and the automatic prefetch.
        self.subscription: EngineSubscription | None = None
        # Set if the prefetch has a goal.
        self._handling: HandlerMeter | None = None
        self._prefetch_control: AutomaticPrefetch | None = None
        if goal is not None:
            _tell_doubts(goal, queue, client.engine_name)
            self._handling = HandlerMeter(concurrency, asyncio.get_running_loop().time)
            self._prefetch_control = AutomaticPrefetch(
                queue,
                goal,
                start=prefetch,
                handling=self._handling,
                on_step=on_step,
            )

    async def run(self) -> None:
        """Handle messages until the shutdown is asked for and all begun handlers have ended."""
        try:
            while not self._shutdown.requested.is_set():
                try:
                    await self._work()
                except RetryLater as outage:
                    self._tell_outage(outage)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._shutdown.requested.wait(), _OUTAGE_S)
        finally:
            # A runner that cannot continue ends the other runners of the app, in an orderly way.
            self._shutdown.begin()
            await self._finish()

    def _tell_outage(self, outage: RetryLater) -> None:
        if not self._in_outage:
            self._in_outage = True
            extra = {"queue": self._queue, "reason": str(outage)}
            log.warning("no messages until the connection is back", extra=extra)

    async def _work(self) -> None:
        if self._prefetch_control is not None:
            # After an outage, start with the prefetch that the loop had reached.
            self._prefetch = self._prefetch_control.steering.tick()
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
                _cancelled_at_the_end(self._control_prefetch(subscription)),
                _cancelled_at_the_end(self._take(subscription)) as taking,
            ):
                await _first_of(taking, self._shutdown.requested)
            if self._shutdown.requested.is_set():
                await subscription.drain()
                await self._finish()
            else:
                await taking  # it failed: raise its error

    async def _control_prefetch(self, subscription: EngineSubscription) -> None:
        if self._prefetch_control is None:
            return
        try:
            await self._prefetch_control.run(subscription)
        except Exception:
            # A failed prefetch loop must not stop the handling of messages.
            log.exception("the prefetch stays as it is", extra={"queue": self._queue})

    async def _take(self, subscription: EngineSubscription) -> None:
        stream = aiter(subscription)
        while True:
            while len(self._running) >= self._concurrency:
                self._slot_freed.clear()
                await self._slot_freed.wait()
            # A cancellation here loses no message. There is no await between here and the new task.
            message = await anext(stream)
            task = asyncio.get_running_loop().create_task(self._handle(message))
            self._running.add(task)
            if self._handling is not None:
                self._handling.on_started()
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slot_freed.set()
        if self._handling is not None:
            self._handling.on_finished()
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("a message was not settled", exc_info=failure, extra={"queue": self._queue})

    async def _finish(self) -> None:
        """Wait for running handlers; cancel them when the shutdown is over."""
        if not self._running or self._finished:
            return
        ended = asyncio.ensure_future(asyncio.wait(set(self._running)))
        await _first_of(ended, self._shutdown.over)
        self._finished = True
        if not self._running:
            return
        log.warning(
            "stopped before everything had finished: the rest goes back",
            extra={"queue": self._queue, "messages": len(self._running)},
        )
        self._shutdown.has_cut_off = True
        for task in self._running:
            task.cancel()
        # A handler that ignores the cancellation loses its message when the subscription closes.
        await asyncio.wait({ended}, timeout=_CUT_OFF_S)

    # Handling one message

    async def _handle(self, message: EngineMessage) -> None:
        try:
            settle = await self._outcome(message)
        except asyncio.CancelledError as cancelled:
            if self._shutdown.over.is_set():
                # The handler did not fail. Deliver the message at once to another worker.
                settle = message.nack(delay=0.0, error=STOPPED_TEXT)
            else:
                settle = message.nack(error=error_text(cancelled))
        if settle is None:
            message.ack()
            return
        try:
            await settle
        except TidegateError as lost:
            # Its connection or lease is lost, so the message comes again anyway.
            log.info(
                "a message had gone back already",
                extra={**self._about(message), "reason": str(lost)},
            )

    async def _outcome(self, message: EngineMessage) -> Awaitable[None] | None:
        """Call the handler; return how to return the message, or `None` to acknowledge it."""
        try:
            result = await self._call(message)
            if result is not None and message.context is not None:
                # Reply before the acknowledgement: a reply may come twice, but must not get lost.
                answer = encode_payload(result)
                await self._client.reply(message, answer.payload, content_type=answer.content_type)
        except Reject as hopeless:
            self._report_step("a message was rejected", message, hopeless)
            return message.reject(error=exception_text(hopeless) or None)
        except Retry as again:
            self._report_step("a message is to be tried again", message, again)
            return message.nack(delay=again.after, error=exception_text(again) or None)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # Some libraries raise panics that are no `Exception`. Return the message for them, too;
            # otherwise it would be held for ever.
            self._report_step("a message failed", message, error, traceback=True)
            return message.nack(error=error_text(error))
        return None

    def _about(self, message: EngineMessage) -> dict[str, Any]:
        return {
            "queue": self._queue,
            "message_id": message.message_id,
            "delivery_count": message.delivery_count,
        }

    def _report_step(
        self, event: str, message: EngineMessage, error: BaseException, *, traceback: bool = False
    ) -> None:
        extra = self._about(message) | {"reason": error_text(error)}
        log.warning(event, exc_info=error if traceback else None, extra=extra)


def _tell_doubts(goal: PrefetchGoal, queue: str, engine: str) -> None:
    """Log a warning if the goal's model was measured on another queue or engine."""
    doubts = "" if goal.model is None else goal.model.doubts(queue, engine)
    if doubts:
        log.warning("a model of something else", extra={"queue": queue, "reason": doubts})


async def _first_of(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    """Wait until a task has ended or an event is set."""
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
            task.exception()  # mark the exception as seen, so that asyncio does not log it


# The shutdown of workers: they stop taking messages, and later stop waiting for handlers.


class GracefulShutdown:
    """The shutdown state that all workers of an app share.

    The first request lets handlers finish within `drain_s` seconds. A second one stops them now.
    """

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self.requested = asyncio.Event()
        # Set at the deadline, or by a second request.
        self.over = asyncio.Event()
        # Whether handlers were still running at the deadline.
        self.has_cut_off = False

    def request(self) -> None:
        if self.requested.is_set():
            self.over.set()
        else:
            self.begin()

    def begin(self) -> None:
        """Begin the shutdown, unless it has begun."""
        if not self.requested.is_set():
            self.requested.set()
            asyncio.get_running_loop().call_later(self._drain_s, self.over.set)

    def hurry(self) -> None:
        """Stop without waiting for handlers."""
        self.requested.set()
        self.over.set()


# The forced end of a process in which something hangs.
#
# A blocked event loop cannot enforce a deadline, and Python waits for threads of user code at exit.
# So a thread of its own watches the deadline. It receives deadlines through a `SimpleQueue`, which
# signal handlers may use at any point.


# The time for hooks and disconnecting, beyond the time for running handlers, in seconds.
EXIT_MESSAGE_S = 10.0
_STDERR_FD = 2
_MESSAGE = b"tidegate: a handler or a hook hangs: the process did not end in time, and is ended\n"


class ForcedExit:
    """Ends the process at the earliest deadline that was set; does nothing before one is set."""

    def __init__(self) -> None:
        # Deadlines by the monotonic clock; `None` cancels.
        self._times: SimpleQueue[float | None] = SimpleQueue()
        threading.Thread(target=self._wait, name="tidegate-last-exit", daemon=True).start()

    def within(self, seconds: float) -> None:
        """End the process in `seconds` from now, unless called off."""
        self._times.put(time.monotonic() + seconds)

    def call_off(self) -> None:
        """Cancel the forced end, since the process ends by itself."""
        self._times.put(None)

    def _wait(self) -> None:
        ends_at = self._times.get()
        while ends_at is not None:
            left_s = min(max(ends_at - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
            try:
                other = self._times.get(timeout=left_s)
            except Empty:
                _say_last()
                os._exit(1)
            ends_at = None if other is None else min(ends_at, other)


def _say_last() -> None:
    # A logger's lock may be what hangs, and writing to a full pipe would block. So write directly,
    # and only if that does not block.
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [_STDERR_FD], [], 0.0)[1]:
            os.write(_STDERR_FD, _MESSAGE)
