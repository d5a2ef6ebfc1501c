"""The broker for tests without async: calls turn the loop, in the test's own thread.

Strategy: no thread and no waiting; between two calls nothing happens, during a call everything that
it needs. So a test that blocks is as repeatable as one that does not.
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
    """A loop that runs while somebody waits for it, where they wait."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.loop = self._runner.get_loop()

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    def call(self, function: Callable[[], asyncio.Future[Result]]) -> Future[Result]:
        # Whoever holds it has no loop to wait in, so it is waited for here.
        future: Future[Result] = Future()

        async def run() -> Result:
            return await function()

        try:
            future.set_result(self.wait(run()))
        except Exception as failure:
            future.set_exception(failure)
        return future

    def stop(self) -> None:
        """Clients come and go; the broker ends it."""

    def end(self) -> None:
        self._runner.close()


class BlockingBroker:
    """Use with `with`."""

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
        """A client, with the keywords of `tidegate.connect`."""
        return BlockingClient(lambda: Client(self._broker.url, **settings), self._turned)

    def time(self) -> float:
        """The broker's clock, in seconds since 1970."""
        return self._broker.time()

    def advance(self, seconds: float) -> None:
        """Let time pass: whatever is due within it happens."""
        self._turned.wait(self._broker.advance(seconds))

    def settle(self) -> None:
        """Let everything run until nothing moves any more."""
        self._turned.wait(self._broker.settle())

    def restart(self) -> None:
        """Stop the node and start it again on the same store."""
        self._turned.wait(self._broker.restart())

    def messages(self, queue: str) -> list[BlockingMessage]:
        """The messages that wait in a queue."""
        return self._here(self._turned.wait(self._broker.messages(queue)))

    def dead(self, queue: str) -> list[BlockingMessage]:
        """The dead letters of a queue."""
        return self._here(self._turned.wait(self._broker.dead(queue)))

    def _here(self, messages: list[Message]) -> list[BlockingMessage]:
        return [BlockingMessage(message, self._turned) for message in messages]

    def queue(self, queue: str) -> QueueNumbers:
        """A queue's numbers."""
        return self._turned.wait(self._broker.queue(queue))

    def scale(self, queue: str, replicas: int) -> Topology:
        """Spread a queue over so many replicas."""
        return self._turned.wait(self._broker.scale(queue, replicas))

    def run(self, app: Application) -> None:
        """Run an app's workers until nothing moves any more."""
        self._turned.wait(self._broker.run(app))
