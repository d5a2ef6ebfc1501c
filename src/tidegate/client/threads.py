"""Threads for functions that block, as many as may run at once.

The standard library's pool joins its threads when the process ends, so that one hanging function
would keep a worker from ever stopping. These are daemons: what they do at the deadline is cut off
with the process, and its message has gone back by then.
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
    """Started when first needed."""

    def __init__(self, name: str, count_max: int) -> None:
        self._name = name
        self._count_max = count_max
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread, with our context variables, and wait for it."""
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
                    # To the loop these are orders to itself; here a job has failed, no more.
                    failure = RuntimeError(f"{type(error).__name__}: {error}")
                    failure.__cause__ = error
                    future.set_exception(failure)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            # Held while idle, they would keep what the message was made of alive.
            del job, future, call
            self._idle.release()

    def end(self) -> None:
        """Those that are idle end now, the others with their job."""
        for _ in range(self._count):
            self._jobs.put(None)
