"""An event loop in which waiting takes no real time.

Theory of operation. Nodes, clients and tested handlers wait through the event loop
(`asyncio.sleep`, `call_later`, `asyncio.timeout`). The loop itself waits only in its selector.
`VirtualSelector` does not wait there; it moves the clock to the next timer. So everything that is
due happens in order, each at its own time, and nothing else happens.

Work in threads (blocking handlers) runs in real time, since the loop cannot see it. The clock does
not move while such a thread runs, except while the thread itself waits for the loop.

A test framework usually creates the loop (pytest-asyncio, anyio, `asyncio.run`). A plain asyncio
loop can be adopted while it runs: it gets this selector and these methods, and its own back at the
end. Virtual time starts at the loop's present time, so all timers stay valid.

Two limits detect a test that hangs: more than `patience_s` of virtual time without an event, and
more than `TURNS_MAX` turns of the loop at one moment. Both raise `TimeoutError` in the test.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from tidegate.core.errors import InvalidValue
from tidegate.testing.network import InMemoryNetwork

Result = TypeVar("Result")

# A test that waits longer for something is considered as hanging, in seconds of virtual time.
PATIENCE_S = 24 * 3600.0
# A loop that turns more often at one moment is considered as never ending.
TURNS_MAX = 500_000


class VirtualSelector(selectors.BaseSelector):
    """A selector that moves its clock instead of waiting."""

    def __init__(self, sockets: selectors.BaseSelector, now: float) -> None:
        self.sockets = sockets
        self.now = now
        # The number of threads at work, which take real time.
        self.threads = 0
        self.patience_s = PATIENCE_S
        self._waited_s = 0.0
        self._turns = 0
        self._for_quiet: list[asyncio.Future[None]] = []
        # Futures of running `pass_time` calls.
        self._passing: set[asyncio.Future[None]] = set()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self.sockets.select(0)
        if found or (timeout is not None and timeout <= 0):
            self._turns += 1
            if self._turns > TURNS_MAX:
                self._turns_for_ever()
            return found
        # Nothing is ready, so everything that can happen at this moment has happened.
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
        """Return when nothing can happen before the clock moves."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_quiet.append(future)
        await future

    async def pass_time(self, seconds: float) -> None:
        """Let `seconds` pass, in which everything due happens."""
        # The test asked for this time, so it is not counted as hanging.
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
        """Return a context manager that stops the clock while a thread works."""
        return self._counting(1)

    def moving_on(self) -> AbstractContextManager[None]:
        """Return a context manager that lets the clock move while a thread waits for the loop."""
        return self._counting(-1)

    # Other sockets stay in the original selector.

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
    """An event loop with virtual time and connections in memory."""

    def __init__(self) -> None:
        sockets = selectors.DefaultSelector()
        timeline = VirtualSelector(sockets, now=0.0)
        super().__init__(timeline)
        timeline.now = super().time()
        self.timeline = timeline
        self.network = InMemoryNetwork(self)
        self._adopters = 0

    @classmethod
    def adopt(cls, loop: asyncio.AbstractEventLoop) -> VirtualTimeLoop:
        """Give a running plain loop virtual time, until `let_go` was called as often as `adopt`.

        Raise `InvalidValue` for a loop of another kind, such as uvloop.
        """
        if not isinstance(loop, cls):
            if type(loop) is not asyncio.SelectorEventLoop:
                raise InvalidValue(
                    f"the test runs on a {type(loop).__module__}.{type(loop).__name__}, whose time "
                    "cannot be turned: run it with `tidegate.testing.run(test())`, or give your "
                    "test runner `tidegate.testing.VirtualTimeLoop` as its loop factory"
                )
            timeline = VirtualSelector(loop._selector, loop.time())  # type: ignore[attr-defined]
            loop._selector = timeline  # type: ignore[attr-defined]
            loop.__class__ = cls
            assert isinstance(loop, cls)
            loop.timeline = timeline
            loop.network = InMemoryNetwork(loop)
            loop._adopters = 0
            loop._made_plain = False
        loop._adopters += 1
        return loop

    # Whether it was created as a virtual loop. An adopted loop sets it to False.
    _made_plain = True

    def let_go(self) -> None:
        """End one adoption; after the last one, the loop gets its own time back."""
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
        """Return a context manager that stops time, for code that runs threads of its own."""
        return self.timeline.standing_still()

    def moving_on(self) -> AbstractContextManager[None]:
        """Return a context manager that lets time pass while such a thread waits for the loop."""
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
    """Run a test in virtual time, as `asyncio.run` does in real time; return its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
