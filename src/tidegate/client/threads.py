"""Threads for handlers that are not async, up to a maximum number.

The standard library's pool joins its threads when the process ends, so one hanging handler would
keep a worker from stopping. These threads are daemons: they end with the process. The messages of
handlers that still run have gone back to their queues by then.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any


class Threads(Executor):
    """An executor that starts threads when they are first needed."""

    def __init__(self, name: str, count_max: int) -> None:
        self._name = name
        self._count_max = count_max
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread with the caller's context variables; return its result."""
        with_context = partial(contextvars.copy_context().run, function)
        return await asyncio.get_running_loop().run_in_executor(self, with_context)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._count < self._count_max:
            self._count += 1
            name = f"tidegate-{self._name}-{self._count}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
                    # These exceptions would stop the event loop that receives them, though only a
                    # job has failed.
                    failure = RuntimeError(f"{type(error).__name__}: {error}")
                    failure.__cause__ = error
                    future.set_exception(failure)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            # An idle thread must not keep the message and its arguments in memory.
            del job, future, call
            self._idle.release()

    def end(self) -> None:
        """End idle threads now, and busy ones after their job."""
        for _ in range(self._count):
            self._jobs.put(None)
