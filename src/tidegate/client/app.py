"""An application of workers: functions on queues, run together over one connection.

    app = tidegate.App("tidegate://127.0.0.1:7411")

    @app.worker("orders", concurrency=8)
    async def ship(order: Order) -> None: ...

    app.run()

A decorated function stays what it was and can be called and tested as such. `run()` is for
programs, `serve()` for those that have a loop, `running()` for whoever does something meanwhile,
`connected()` for producers.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack

import msgspec

from tidegate.client.client import Client
from tidegate.client.closing import Closing
from tidegate.client.connect import Connector, connect, usual_url
from tidegate.client.engine import EngineClient, EngineSubscription
from tidegate.client.last_exit import GOODBYE_S, LastExit
from tidegate.client.message import Message
from tidegate.client.middleware import Middleware, call_through
from tidegate.client.options import PutOptions, check_seconds
from tidegate.client.payloads import encoded
from tidegate.client.shift import Shift
from tidegate.client.steered_prefetch import OnStep, PrefetchStep
from tidegate.client.threads import Threads
from tidegate.client.worker import (
    Prefetch,
    Worker,
    checked_concurrency,
    name_of,
    prefetch_and_goal,
)
from tidegate.core.errors import InvalidValue, QueueNotExisting
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])
Layer = TypeVar("Layer", bound=Middleware)
Hook = TypeVar("Hook", bound=Callable[[], Any])
StepHook = TypeVar("StepHook", bound=OnStep)
Result = TypeVar("Result")

DRAIN_S = 30.0


class Staffing(NamedTuple):
    """A worker with what it runs with now."""

    worker: Worker
    concurrency: int
    prefetch: int
    goal: PrefetchGoal | None


class App:
    """Workers, and what is around them."""

    def __init__(self, url: str | None = None, **connection: Any) -> None:
        """The keywords are those of `tidegate.connect`."""
        self.url = url or usual_url()
        connect(self.url, **connection)  # bad ones fail here
        self._connection = connection
        self._workers: dict[str, Worker] = {}
        self._layers: list[Middleware] = []
        self._on_start: list[Callable[[], Any]] = []
        self._on_stop: list[Callable[[], Any]] = []
        self._on_prefetch_step: list[OnStep] = []
        # While it runs:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: Closing | None = None
        self._engine: EngineClient | None = None
        self._connections = contextlib.AsyncExitStack()
        self._asking: asyncio.Task[EngineClient] | None = None
        self._url_in_use = self.url
        self._shifts: dict[str, Shift] = {}
        # Whether the last run has left something that had not finished.
        self.has_cut_off = False

    # Declaring

    def worker(
        self,
        queue: str,
        *,
        concurrency: int = 1,
        prefetch: Prefetch = None,
        policy: QueuePolicy | None = None,
    ) -> Callable[[Function], Function]:
        """Have a function called for each message of a queue, `concurrency` of them at a time.

        A function that is not async runs in a thread. `prefetch` messages are held at most, twice
        the concurrency unless said otherwise; a `tidegate.PrefetchGoal` in place of the number has
        it set itself. The queue is made if there is none, with this policy.
        """
        if callable(queue):
            raise InvalidValue('a worker names its queue: @app.worker("orders")')

        def declare(function: Function) -> Function:
            taken = self._workers.get(queue)
            if taken is not None:
                raise InvalidValue(
                    f"queue {queue!r} has a worker already, {name_of(taken.function)}: a message "
                    f"has one. Give {name_of(function)} a queue of its own"
                )
            self._workers[queue] = Worker(queue, function, concurrency, prefetch, policy)
            return function

        return declare

    def middleware(self, around: Layer) -> Layer:
        """Have `async def around(message, call_next)` stand around every call."""
        if not inspect.iscoroutinefunction(around) and not inspect.iscoroutinefunction(
            getattr(around, "__call__", None)  # noqa: B004
        ):
            raise InvalidValue(f"a middleware is async, and {name_of(around)} is not")
        self._layers.append(around)
        return around

    def on_start(self, hook: Hook) -> Hook:
        """Call this, async or not, when connected and before the first message is taken."""
        self._on_start.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Call this, async or not, after the last message, while still connected."""
        self._on_stop.append(hook)
        return hook

    def on_prefetch_step(self, hook: StepHook) -> StepHook:
        """Call this with every `PrefetchStep` of workers whose prefetch has a goal."""
        self._on_prefetch_step.append(hook)
        return hook

    def _prefetch_stepped(self, step: PrefetchStep) -> None:
        for hook in self._on_prefetch_step:
            hook(step)

    @property
    def workers(self) -> list[Worker]:
        return list(self._workers.values())

    # Running

    def run(
        self,
        *,
        queues: Iterable[str] | None = None,
        concurrency: int | None = None,
        prefetch: Prefetch = None,
        drain_s: float = DRAIN_S,
        url: str | None = None,
    ) -> None:
        """Work until SIGTERM or Ctrl-C; then finish what runs. A second one hurries.

        A third ends whatever else waits: a hook, or a node that does not answer. What hears none
        of them is ended with the process, `drain_s` and ten seconds after the first.
        """
        import uvloop

        last_exit = LastExit()
        hurries = False

        def heard(*_: object) -> None:
            # By the interpreter itself: a handler may have blocked the loop.
            nonlocal hurries
            last_exit.within(GOODBYE_S if hurries else drain_s + GOODBYE_S)
            hurries = True

        async def run() -> None:
            loop = asyncio.get_running_loop()
            serving = asyncio.create_task(
                self.serve(
                    queues=queues,
                    concurrency=concurrency,
                    prefetch=prefetch,
                    drain_s=drain_s,
                    url=url,
                )
            )

            def told() -> None:
                hurried = self._closing is not None and self._closing.over.is_set()
                self.stop()
                if hurried:
                    serving.cancel()

            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, told)
                # The loop hears of it by its own way still.
                signal.signal(number, heard)
            await asyncio.wait({serving})
            if self.has_cut_off:
                # The loop would join what it runs in threads, whose messages others have by now.
                loop.set_default_executor(ThreadPoolExecutor())
            if not serving.cancelled():
                serving.result()

        self.has_cut_off = False
        try:
            uvloop.run(run())
        finally:
            # Python itself joins the threads of what was cut off when the program ends.
            if not self.has_cut_off:
                last_exit.call_off()

    async def serve(
        self,
        *,
        queues: Iterable[str] | None = None,
        concurrency: int | None = None,
        prefetch: Prefetch = None,
        drain_s: float = DRAIN_S,
        url: str | None = None,
    ) -> None:
        """Work until `stop()`, then finish what runs; cancelled, give it back at once."""
        async with self.running(
            queues=queues, concurrency=concurrency, prefetch=prefetch, drain_s=drain_s, url=url
        ):
            assert self._closing is not None
            await self._closing.asked.wait()

    def stop(self) -> None:
        """Take no more messages, finish what runs, end. A second time: now."""
        if self._closing is not None:
            log.info("stopping now" if self._closing.asked.is_set() else "stopping")
            self._closing.ask()

    @contextlib.asynccontextmanager
    async def running(
        self,
        *,
        queues: Iterable[str] | None = None,
        concurrency: int | None = None,
        prefetch: Prefetch = None,
        drain_s: float = DRAIN_S,
        url: str | None = None,
    ) -> AsyncIterator[App]:
        """Work while the block runs, and finish at its end."""
        check_seconds("drain_s", drain_s, at_least=0.0)
        staff = self._staff(queues, concurrency, prefetch)
        # Before we are connected: who is told to stop by then need not start.
        closing = Closing(drain_s)
        async with self._connected(url, closing) as client:
            for one in staff:
                await _queue_made(client, one.worker)
            await _call_all(self._on_start)
            try:
                async with self._working(client, closing, staff):
                    yield self
            finally:
                await _call_all(reversed(self._on_stop))

    @contextlib.asynccontextmanager
    async def connected(self, *, url: str | None = None) -> AsyncIterator[App]:
        """For who only puts: `put`, `send` and `request` work while the block runs, workers do not.

        Neither do the hooks.
        """
        async with self._connected(url, None):
            yield self

    @contextlib.asynccontextmanager
    async def _connected(
        self, url: str | None, closing: Closing | None
    ) -> AsyncIterator[EngineClient]:
        if self._loop is not None:
            raise InvalidValue("the app is running already")
        self._loop = asyncio.get_running_loop()
        self._closing = closing
        self._url_in_use = url or self.url
        try:
            async with self._connections:
                connecting = connect(self._url_in_use, **self._connection)
                engine: EngineClient = await self._enter(connecting)
                self._engine = engine
                try:
                    yield engine
                finally:
                    await self._stop_asking()
        finally:
            self.has_cut_off = closing is not None and closing.has_cut_off
            self._loop = self._closing = self._engine = None

    def _staff(
        self, queues: Iterable[str] | None, concurrency: int | None, prefetch: Prefetch
    ) -> list[Staffing]:
        """Who works, and with how many slots; what is given here goes before what was declared."""
        if not self._workers:
            raise InvalidValue(
                "the app has no workers: decorate a function with @app.worker(queue), in a module "
                "that is imported"
            )
        chosen = list(self._workers) if queues is None else list(dict.fromkeys(queues))
        unknown = [queue for queue in chosen if queue not in self._workers]
        if unknown or not chosen:
            raise InvalidValue(
                f"no worker serves {', '.join(unknown) or 'nothing'}; there are workers for "
                f"{', '.join(self._workers)}"
            )
        staff = []
        for worker in (self._workers[queue] for queue in chosen):
            slots, held = worker.concurrency, prefetch
            if concurrency is not None:
                slots = checked_concurrency(concurrency)
            if prefetch is None and worker.goal is not None:
                held = worker.goal
            elif isinstance(prefetch, PrefetchModel) and worker.goal is not None:
                held = msgspec.structs.replace(worker.goal, model=prefetch)
            elif prefetch is None and concurrency is None:
                held = worker.prefetch
            staff.append(Staffing(worker, slots, *prefetch_and_goal(held, slots)))
        return staff

    @contextlib.asynccontextmanager
    async def _working(
        self, client: EngineClient, closing: Closing, staff: list[Staffing]
    ) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        pools: list[Threads] = []
        try:
            for worker, concurrency, prefetch, goal in staff:
                threads = Threads(worker.queue, concurrency)
                shift = Shift(
                    client,
                    worker.queue,
                    partial(self._call, worker, threads),
                    closing,
                    concurrency=concurrency,
                    prefetch=prefetch,
                    goal=goal,
                    on_step=self._prefetch_stepped,
                )
                pools.append(threads)
                self._shifts[worker.queue] = shift
                tasks.append(loop.create_task(shift.run()))
                await _started(tasks[-1], shift.subscribed)
            yield
            closing.begin()
        except BaseException:
            closing.hurry()
            raise
        finally:
            await _ended(tasks, closing)
            self._shifts.clear()
            for threads in pools:
                threads.end()
        for task in tasks:
            task.result()

    async def _call(self, worker: Worker, threads: Threads, message: Message) -> object:
        return await call_through(self._layers, message, partial(worker.call, message, threads))

    # What workers, and others, use meanwhile

    @property
    def client(self) -> Client:
        """The connection to nodes, while there is one: for transactions, topics and the rest."""
        if not isinstance(self.engine, Client):
            raise InvalidValue(
                "app.client is for Tidegate's own nodes, and this app is on another engine: "
                "app.put, app.send and app.request work there too, and app.engine is its client"
            )
        return self.engine

    @property
    def engine(self) -> EngineClient:
        """The connection to whatever holds the messages, while there is one."""
        if self._engine is None:
            raise InvalidValue(
                "the app is not connected: it is inside its workers, and in a block of "
                "`async with app.connected()`. Without async use tidegate.connect(url)"
            )
        return self._engine

    def subscription(self, queue: str) -> EngineSubscription | None:
        """Of the worker of a queue, while it runs: another one after an outage."""
        shift = self._shifts.get(queue)
        return None if shift is None else shift.subscription

    async def put(self, queue: str, payload: object, **options: Unpack[PutOptions]) -> int:
        """Put bytes, text, or anything that can be JSON; returns when it is on disk."""
        data, content_type = encoded(payload)
        if content_type is not None:
            options.setdefault("content_type", content_type)
        return await self.engine.put(queue, data, **options)

    async def send(
        self, function: Callable[..., Any], payload: object, **options: Unpack[PutOptions]
    ) -> int:
        """Put a payload where a worker's function takes it."""
        queues = [worker.queue for worker in self.workers if worker.function is function]
        if len(queues) != 1:
            serves = f"serves {', '.join(queues)}: put to one of them" if queues else "is no worker"
            raise InvalidValue(f"{name_of(function)} {serves}")
        return await self.put(queues[0], payload, **options)

    async def request(self, queue: str, payload: object, *, timeout: float = 30.0) -> Message:
        """Put a request, wait for the reply; NoReply when none comes in time."""
        client = await self._asking_client()
        data, content_type = encoded(payload)
        reply: Message = await client.request(
            queue, data, timeout=timeout, content_type=content_type
        )
        return reply

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """In a worker that is not async: `app.wait(app.put("mails", b"…"))`."""
        loop = self._loop
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if loop is None or here is not None:
            work.close()
            if here is not None:
                raise InvalidValue("app.wait would block the event loop here: await it instead")
            raise InvalidValue("the app is not connected: use tidegate.connect(url)")
        # A loop with virtual time (tidegate.testing) stood still for this thread, until now.
        moving_on = getattr(loop, "moving_on", contextlib.nullcontext)

        async def waited_for() -> Result:
            with moving_on():
                return await work

        return asyncio.run_coroutine_threadsafe(waited_for(), loop).result()

    async def _asking_client(self) -> EngineClient:
        """A connection of its own: a reply is addressed to who asked, and what is addressed to us
        goes to our workers.
        """
        _ = self.engine  # running?
        if self._asking is None or (self._asking.done() and self._asking.exception()):
            connecting = connect(self._url_in_use, **{**self._connection, "name": None})
            self._asking = asyncio.get_running_loop().create_task(self._enter(connecting))
        return await asyncio.shield(self._asking)

    async def _enter(self, connecting: Connector[Client]) -> EngineClient:
        return await self._connections.enter_async_context(connecting)

    async def _stop_asking(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None and not asking.done():
            asking.cancel()
            await asyncio.wait({asking})


async def _queue_made(client: EngineClient, worker: Worker) -> None:
    """Looked up first: whoever may read a queue need not be allowed to make one."""
    client.adopt_policy(worker.queue, worker.policy)
    try:
        await client.queue(worker.queue)
    except QueueNotExisting:
        await client.create_queue(worker.queue, exist_ok=True, policy=worker.policy)
        log.info("made the queue", extra={"queue": worker.queue})


async def _started(task: asyncio.Task[None], subscribed: asyncio.Event) -> None:
    """Wait until it takes messages; raise when it cannot."""
    waiting = asyncio.get_running_loop().create_task(subscribed.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()


async def _ended(tasks: list[asyncio.Task[None]], closing: Closing) -> None:
    """Wait for their ends; cancelled meanwhile, not as long."""
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        closing.hurry()
        await asyncio.wait(tasks)
        raise


async def _call_all(hooks: Iterable[Callable[[], Any]]) -> None:
    for hook in hooks:
        result = hook()
        if inspect.isawaitable(result):
            await result
