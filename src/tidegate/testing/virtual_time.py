"""An event loop in which waiting takes no time.

Strategy: nodes and clients wait by the event loop (`asyncio.sleep`, `call_later`,
`asyncio.timeout`) at a dozen places, so the loop is the one place where time can be turned for all
of them, and for the handlers under test too. A loop waits in its selector and nowhere else: ours
moves the clock to the next timer instead of waiting for it. Everything that is due on the way
happens, in order, each at its own time; what is not due does not.

Only work that the loop cannot see runs in real time: threads of an executor (blocking handlers).
While one runs, the clock stands.

The test's loop is usually made by somebody else (pytest-asyncio, anyio, `asyncio.run`). A plain
asyncio loop can be adopted while it runs: it gets our selector and our methods, and its own back
at the end. No timer gets lost, since virtual time starts at the loop's present time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from tidegate.core.errors import InvalidValue
from tidegate.testing.network import Network

Result = TypeVar("Result")

# A test that waits longer than this for something waits for ever.
PATIENCE_S = 24 * 3600.0
# A loop that turns as often without any time passing turns for ever.
TURNS_MAX = 500_000


class Timeline(selectors.BaseSelector):
    """A selector that moves its clock instead of waiting."""

    def __init__(self, sockets: selectors.BaseSelector, now: float) -> None:
        self.sockets = sockets
        self.now = now
        # Pieces of work in threads; they take real time.
        self.threads = 0
        self.patience_s = PATIENCE_S
        self._waited_s = 0.0
        self._turns = 0
        self._for_quiet: list[asyncio.Future[None]] = []
        # Those who let time pass.
        self._passing: set[asyncio.Future[None]] = set()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self.sockets.select(0)
        if found or (timeout is not None and timeout <= 0):
            self._turns += 1
            if self._turns > TURNS_MAX:
                self._turns_for_ever()
            return found
        # Nothing is ready: all that could happen now has happened.
        if self.threads:
            return self.sockets.select(None)
        if self._for_quiet:
            waiting, self._for_quiet = self._for_quiet, []
            for future in waiting:
                _done(future)
            return []
        if timeout is None:
            return self.sockets.select(None)
        self.now += timeout
        self._turns = 0
        self._waited_s += timeout
        if self._waited_s > self.patience_s:
            self._waited_s = 0.0
            raise TimeoutError(
                f"the test has waited for {self.patience_s:g} s of virtual time, and what it waits "
                "for did not come; if it should wait that long, `await broker.advance(...)` first"
            )
        return []

    def _turns_for_ever(self) -> None:
        self._turns = 0
        error = TimeoutError(
            f"the event loop has turned {TURNS_MAX} times and is not done with this moment: does a "
            "worker put what it takes, for ever?"
        )
        waiting = [future for future in (*self._passing, *self._for_quiet) if not future.done()]
        self._for_quiet.clear()
        for future in waiting:
            future.set_exception(error)
        if not waiting:
            raise error

    async def quiet(self) -> None:
        """Return when nothing can happen any more before the clock moves."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_quiet.append(future)
        await future

    async def pass_time(self, seconds: float) -> None:
        """Let everything that is due within that time happen."""
        # Asked for, so it is no sign of a test that hangs.
        self._waited_s = -seconds
        loop = asyncio.get_running_loop()
        passed: asyncio.Future[None] = loop.create_future()
        end = loop.call_later(seconds, _done, passed)
        self._passing.add(passed)
        try:
            await passed
        finally:
            end.cancel()
            self._passing.discard(passed)
        await self.quiet()
        self._waited_s = 0.0

    @contextmanager
    def _counting(self, change: int) -> Iterator[None]:
        self.threads += change
        try:
            yield
        finally:
            self.threads -= change

    def standing_still(self) -> AbstractContextManager[None]:
        """A thread is at work, which the loop cannot see."""
        return self._counting(1)

    def moving_on(self) -> AbstractContextManager[None]:
        """A thread that is at work waits for the loop."""
        return self._counting(-1)

    # Sockets that are not ours stay where they were.

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.sockets.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self.sockets.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.sockets.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self.sockets.get_map() or {}

    def close(self) -> None:
        self.sockets.close()


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop with virtual time and a network of its own."""

    def __init__(self) -> None:
        sockets = selectors.DefaultSelector()
        timeline = Timeline(sockets, now=0.0)
        super().__init__(timeline)
        timeline.now = super().time()
        self.timeline = timeline
        self.network = Network(self)
        self._adopters = 0

    @classmethod
    def adopt(cls, loop: asyncio.AbstractEventLoop) -> VirtualTimeLoop:
        """Give a plain loop virtual time, until as many let it go as adopted it."""
        if not isinstance(loop, cls):
            if type(loop) is not asyncio.SelectorEventLoop:
                raise InvalidValue(
                    f"the test runs on a {type(loop).__module__}.{type(loop).__name__}, whose time "
                    "cannot be turned: run it with `tidegate.testing.run(test())`, or give your "
                    "test runner `tidegate.testing.VirtualTimeLoop` as its loop factory"
                )
            timeline = Timeline(loop._selector, loop.time())  # type: ignore[attr-defined]
            loop._selector = timeline  # type: ignore[attr-defined]
            loop.__class__ = cls
            assert isinstance(loop, cls)
            loop.timeline = timeline
            loop.network = Network(loop)
            loop._adopters = 0
            loop._made_plain = False
        loop._adopters += 1
        return loop

    # Whether it was a virtual loop from the start.
    _made_plain = True

    def let_go(self) -> None:
        """Who adopted it needs it no longer."""
        self._adopters -= 1
        if self._adopters == 0 and not self._made_plain and not self.is_closed():
            self._selector = self.timeline.sockets
            self.__class__ = asyncio.SelectorEventLoop  # type: ignore[assignment]

    def time(self) -> float:
        return self.timeline.now

    # Threads

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self.timeline.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self.timeline.threads -= 1

    def standing_still(self) -> AbstractContextManager[None]:
        """For who has threads of their own: while one is at work, time does not pass."""
        return self.timeline.standing_still()

    def moving_on(self) -> AbstractContextManager[None]:
        """While such a thread waits for the loop, it does."""
        return self.timeline.moving_on()

    async def shutdown_default_executor(self, *args: Any) -> None:
        with self.timeline.standing_still():
            await super().shutdown_default_executor(*args)

    # Sockets

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if self.network.is_ours(host):
            return self.network.listen(protocol_factory, host, port or 0)
        return await super().create_server(protocol_factory, host, port, **options)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if self.network.is_ours(host):
            return self.network.connect(protocol_factory, host, port)
        return await super().create_connection(protocol_factory, host, port, **options)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a test in virtual time, as `asyncio.run` would in real time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
