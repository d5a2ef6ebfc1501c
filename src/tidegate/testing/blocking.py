"""The broker for tests without async: calls run the event loop in the test's own thread.

There is no other thread and no real waiting. During a call everything happens that it needs, and
between two calls nothing happens. So a blocking test is as repeatable as an asynchronous one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from tidegate.client.blocking import BlockingClient, BlockingMessage, LoopThread
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.core.replication import Topology
from tidegate.node.limits import Limits
from tidegate.telemetry.numbers import QueueNumbers
from tidegate.testing.broker import DEFAULT_LIMITS, Application, Broker
from tidegate.testing.deliveries import Delivery
from tidegate.testing.virtual_time import VirtualTimeLoop

Result = TypeVar("Result")


class TurnedLoop(LoopThread):
    """An event loop that runs only during a call, in the thread of the caller."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.loop = self._runner.get_loop()

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    def call(self, function: Callable[[], asyncio.Future[Result]]) -> Future[Result]:
        # The caller cannot run the loop to wait for the future, so complete it here.
        future: Future[Result] = Future()

        async def run() -> Result:
            return await function()

        try:
            future.set_result(self.wait(run()))
        except Exception as failure:
            future.set_exception(failure)
        return future

    def stop(self) -> None:
        """Do nothing when a client closes, since the broker owns the loop and closes it."""

    def end(self) -> None:
        self._runner.close()


class BlockingBroker:
    """An in-memory broker for tests without async; use it with `with`. See `Broker`."""

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._turned = TurnedLoop()
        self._broker = Broker(limits=limits)

    def __enter__(self) -> BlockingBroker:
        self._turned.wait(self._broker.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._turned.wait(self._broker.stop())
        self._turned.end()

    @property
    def deliveries(self) -> list[Delivery]:
        return self._broker.deliveries

    def connect(self, **settings: Any) -> BlockingClient:
        """Return a connected client; the settings are those of `Client` without the URL."""
        return BlockingClient(lambda: Client(self._broker.url, **settings), self._turned)

    def time(self) -> float:
        """Return the broker's time in seconds since 1970."""
        return self._broker.time()

    def advance(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass, in which everything due happens; then settle."""
        self._turned.wait(self._broker.advance(seconds))

    def settle(self) -> None:
        """Run everything until no packet moves any more; see `Broker.settle`."""
        self._turned.wait(self._broker.settle())

    def restart(self) -> None:
        """Stop the node and start it again on the same store."""
        self._turned.wait(self._broker.restart())

    def messages(self, queue: str) -> list[BlockingMessage]:
        """Return the waiting messages of a queue, the oldest first.

        The list is empty if there is no such queue.
        """
        return self._here(self._turned.wait(self._broker.messages(queue)))

    def dead(self, queue: str) -> list[BlockingMessage]:
        """Return the dead letters of a queue."""
        return self._here(self._turned.wait(self._broker.dead(queue)))

    def _here(self, messages: list[Message]) -> list[BlockingMessage]:
        return [BlockingMessage(message, self._turned) for message in messages]

    def queue(self, queue: str) -> QueueNumbers:
        """Return the stats of a queue; raise `QueueNotExisting` if there is none."""
        return self._turned.wait(self._broker.queue(queue))

    def scale(self, queue: str, replicas: int) -> Topology:
        """Spread a queue over this number of replicas, and return its topology."""
        return self._turned.wait(self._broker.scale(queue, replicas))

    def run(self, app: Application) -> None:
        """Run an app's workers until no packet moves any more."""
        self._turned.wait(self._broker.run(app))
