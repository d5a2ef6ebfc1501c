"""An application of workers: functions that handle the messages of queues.

    app = tidegate.App("tidegate://127.0.0.1:7411")

    @app.worker("orders", concurrency=8)
    async def ship(order: Order) -> None: ...

    app.run()

A decorated function is unchanged, and tests can call it directly. There are four ways to run an
app:

- `run()` starts an event loop and works until a signal, for programs.
- `serve()` works until `stop()`, for programs with an event loop of their own.
- `running()` works while a block runs.
- `connected()` only connects, for producers.

All workers of an app share one connection. Each worker has a `WorkerRunner`, and all share one
`GracefulShutdown`, so a worker that fails ends the others in an orderly way.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack

import msgspec

from tidegate.client.blocking import new_event_loop
from tidegate.client.client import Client
from tidegate.client.connect import Connector, connect, default_url
from tidegate.client.engine import EngineClient, EngineSubscription
from tidegate.client.handler import (
    Handler,
    HandlerThreads,
    Prefetch,
    checked_concurrency,
    name_of,
    prefetch_and_goal,
)
from tidegate.client.message import Message, PutOptions, check_seconds, encode_payload
from tidegate.client.prefetch import OnStep, PrefetchStep
from tidegate.client.worker import EXIT_MESSAGE_S, ForcedExit, GracefulShutdown, WorkerRunner
from tidegate.core.errors import InvalidValue, QueueNotExisting
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel

# Middleware: code around every call of a worker's function.
#
#     @app.middleware
#     async def timed(message: tidegate.Message, call_next: tidegate.CallNext) -> object:
#         with timer(message.queue):
#             return await call_next()
#
# Code before that `await` runs before the function, and code after it runs afterwards. `try` sees
# exceptions, and `with` keeps a span or a database session open during the call. The first
# middleware declared is the outermost. The message is acknowledged after the outermost one returns.


CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Message, CallNext], Awaitable[Any]]


async def apply_middleware(
    layers: Sequence[Middleware], message: Message, innermost: CallNext
) -> object:
    """Call `innermost` through all middleware, and return the result of the outermost one."""
    call = innermost
    for layer in reversed(layers):
        call = partial(layer, message, call)
    return await call()


log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])
Layer = TypeVar("Layer", bound=Middleware)
Hook = TypeVar("Hook", bound=Callable[[], Any])
StepHook = TypeVar("StepHook", bound=OnStep)
Result = TypeVar("Result")

DRAIN_S = 30.0


class WorkerOptions(NamedTuple):
    """A worker with the settings of this run."""

    worker: Handler
    concurrency: int
    prefetch: int
    goal: PrefetchGoal | None


class App:
    """Workers with their middleware and hooks."""

    def __init__(self, url: str | None = None, **connection: Any) -> None:
        """Declare an app; it connects when it runs.

        Args:
            url: as for `tidegate.connect`; `None` means TIDEGATE_URL, or a node on this machine.
            connection: further arguments of `tidegate.connect`.

        Raises:
            InvalidValue: a bad URL or argument.
        """
        self.url = url or default_url()
        connect(self.url, **connection)  # raises for bad arguments
        self._connection = connection
        self._workers: dict[str, Handler] = {}
        self._layers: list[Middleware] = []
        self._on_start: list[Callable[[], Any]] = []
        self._on_stop: list[Callable[[], Any]] = []
        self._on_prefetch_step: list[OnStep] = []
        # Set while the app runs:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shutdown: GracefulShutdown | None = None
        self._engine: EngineClient | None = None
        self._connections = contextlib.AsyncExitStack()
        self._asking: asyncio.Task[EngineClient] | None = None
        self._url_in_use = self.url
        self._shifts: dict[str, WorkerRunner] = {}
        # Whether the last run ended while handlers were still running.
        self.has_cut_off = False

    # Declaring workers

    def worker(
        self,
        queue: str,
        *,
        concurrency: int = 1,
        prefetch: Prefetch = None,
        policy: QueuePolicy | None = None,
    ) -> Callable[[Function], Function]:
        """Register the decorated function as the handler of a queue.

        Args:
            queue: a queue has at most one worker in an app. If the queue does not exist when the
                app starts, it is created.
            concurrency: how many messages are handled at a time. A function that is not async runs
                in a thread.
            prefetch: the most messages held, running ones included; at least `concurrency`. `None`
                means twice the concurrency. A `tidegate.PrefetchGoal` controls the prefetch
                automatically, and a `PrefetchModel` does so with this model.
            policy: the policy for a queue that is created; an existing queue keeps its own.

        The function's first parameter receives the payload, decoded by its annotation. A parameter
        that is annotated `tidegate.Message` receives the message. See `Reject` and `Retry` for its
        exceptions.

        Raises:
            InvalidValue: a bad argument, a second worker for the queue, or a parameter type that
                cannot be decoded.
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
            self._workers[queue] = Handler(queue, function, concurrency, prefetch, policy)
            return function

        return declare

    def middleware(self, around: Layer) -> Layer:
        """Register `async def around(message, call_next)`, which wraps every call of a handler.

        The first middleware registered is the outermost. A function that is not async raises
        `InvalidValue`.
        """
        if not inspect.iscoroutinefunction(around) and not inspect.iscoroutinefunction(
            getattr(around, "__call__", None)  # noqa: B004
        ):
            raise InvalidValue(f"a middleware is async, and {name_of(around)} is not")
        self._layers.append(around)
        return around

    def on_start(self, hook: Hook) -> Hook:
        """Register a function, async or not, to call after connecting, before the first message."""
        self._on_start.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Register a function, async or not, to call after the last message.

        The app is still connected then.
        """
        self._on_stop.append(hook)
        return hook

    def on_prefetch_step(self, hook: StepHook) -> StepHook:
        """Register a function to call with every `PrefetchStep` of workers with a prefetch goal."""
        self._on_prefetch_step.append(hook)
        return hook

    def _prefetch_stepped(self, step: PrefetchStep) -> None:
        for hook in self._on_prefetch_step:
            hook(step)

    @property
    def workers(self) -> list[Handler]:
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
        """Run the workers until SIGTERM or Ctrl-C, then let running handlers finish.

        A second signal stops without waiting for handlers. A third one cancels everything else,
        such as a hook or a node that does not answer. If the process still runs `drain_s` + 10
        seconds after the first signal, or 10 seconds after the second, a thread ends it with exit
        code 1.

        Args:
            queues: run only the workers of these queues; `None` means all.
            concurrency, prefetch: take precedence over the values in `worker()`.
            drain_s: how long running handlers may take to finish, in seconds. After that their
                messages return to the queue.
            url: takes precedence over the URL of the app.

        Raises:
            Unavailable: no node answers at the start. Later outages are waited for.
            QueueNotExisting: a queue was deleted; the other workers finish first.
            InvalidValue: a bad argument, or an app without workers.
        """
        last_exit = ForcedExit()
        is_second = False

        def heard(*_: object) -> None:
            # The interpreter calls this even if a handler blocks the event loop, and also while it
            # handles another signal: so the flag is set before any call.
            nonlocal is_second
            hurries, is_second = is_second, True
            last_exit.within(EXIT_MESSAGE_S if hurries else drain_s + EXIT_MESSAGE_S)

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
                hurried = self._shutdown is not None and self._shutdown.over.is_set()
                self.stop()
                if hurried:
                    serving.cancel()

            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, told)
                # `signal.signal` replaces only Python's handler. The event loop is still notified
                # by its wakeup file descriptor.
                signal.signal(number, heard)
            await asyncio.wait({serving})
            if self.has_cut_off:
                # Closing the loop would wait for threads of its default executor. Handlers that
                # were stopped may still run there, and their messages have gone back. So close an
                # empty executor.
                loop.set_default_executor(ThreadPoolExecutor())
            if not serving.cancelled():
                serving.result()

        self.has_cut_off = False
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(run())
        finally:
            # At exit Python waits for threads. With stopped handlers, leave the forced exit armed.
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
        """Run the workers until `stop()`, then let running handlers finish.

        The arguments are those of `run`. If cancelled, return all unfinished messages at once.
        """
        async with self.running(
            queues=queues, concurrency=concurrency, prefetch=prefetch, drain_s=drain_s, url=url
        ):
            assert self._shutdown is not None
            await self._shutdown.requested.wait()

    def stop(self) -> None:
        """Stop taking messages and let running handlers finish; a second call stops at once."""
        if self._shutdown is not None:
            log.info("stopping now" if self._shutdown.requested.is_set() else "stopping")
            self._shutdown.request()

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
        """Run the workers while the block runs, and stop them at its end.

        The arguments are those of `run`.
        """
        check_seconds("drain_s", drain_s, at_least=0.0)
        staff = self._staff(queues, concurrency, prefetch)
        # Created before connecting, so that an app that is stopped meanwhile does not start.
        closing = GracefulShutdown(drain_s)
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
        """Connect while the block runs, for producers; workers and hooks do not run.

        `put`, `send` and `request` work inside.
        """
        async with self._connected(url, None):
            yield self

    @contextlib.asynccontextmanager
    async def _connected(
        self, url: str | None, closing: GracefulShutdown | None
    ) -> AsyncIterator[EngineClient]:
        if self._loop is not None:
            raise InvalidValue("the app is running already")
        self._loop = asyncio.get_running_loop()
        self._shutdown = closing
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
            self._loop = self._shutdown = self._engine = None

    def _staff(
        self, queues: Iterable[str] | None, concurrency: int | None, prefetch: Prefetch
    ) -> list[WorkerOptions]:
        """Return the workers to run; arguments take precedence over declared settings."""
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
            staff.append(WorkerOptions(worker, slots, *prefetch_and_goal(held, slots)))
        return staff

    @contextlib.asynccontextmanager
    async def _working(
        self, client: EngineClient, closing: GracefulShutdown, staff: list[WorkerOptions]
    ) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        pools: list[HandlerThreads] = []
        try:
            for worker, concurrency, prefetch, goal in staff:
                threads = HandlerThreads(worker.queue, concurrency)
                shift = WorkerRunner(
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

    async def _call(self, worker: Handler, threads: HandlerThreads, message: Message) -> object:
        return await apply_middleware(self._layers, message, partial(worker.call, message, threads))

    # For workers and producers

    @property
    def client(self) -> Client:
        """The connected Tidegate client, for transactions, topics and other calls.

        Raises `InvalidValue` while not connected, or if the app uses another engine.
        """
        if not isinstance(self.engine, Client):
            raise InvalidValue(
                "app.client is for Tidegate's own nodes, and this app is on another engine: "
                "app.put, app.send and app.request work there too, and app.engine is its client"
            )
        return self.engine

    @property
    def engine(self) -> EngineClient:
        """The connected client of the app's engine; raises `InvalidValue` while not connected."""
        if self._engine is None:
            raise InvalidValue(
                "the app is not connected: it is inside its workers, and in a block of "
                "`async with app.connected()`. Without async use tidegate.connect(url)"
            )
        return self._engine

    def subscription(self, queue: str) -> EngineSubscription | None:
        """Return the current subscription of a worker; `None` if the worker does not run.

        After an outage the worker has another subscription.
        """
        shift = self._shifts.get(queue)
        return None if shift is None else shift.subscription

    async def put(self, queue: str, payload: object, **options: Unpack[PutOptions]) -> int:
        """Put bytes, text, or a value to encode as JSON; return the message id once it is on disk.

        The options are those of `Client.put`.
        """
        data, content_type = encode_payload(payload)
        if content_type is not None:
            options.setdefault("content_type", content_type)
        return await self.engine.put(queue, data, **options)

    async def send(
        self, function: Callable[..., Any], payload: object, **options: Unpack[PutOptions]
    ) -> int:
        """Put a payload into the queue of a worker's function; return the message id.

        Returns once the message is on disk. A function that is no worker, or serves several queues,
        raises `InvalidValue`.
        """
        queues = [worker.queue for worker in self.workers if worker.function is function]
        if len(queues) != 1:
            serves = f"serves {', '.join(queues)}: put to one of them" if queues else "is no worker"
            raise InvalidValue(f"{name_of(function)} {serves}")
        return await self.put(queues[0], payload, **options)

    async def request(self, queue: str, payload: object, *, timeout: float = 30.0) -> Message:
        """Put a request and return its reply; `NoReply` if none comes in `timeout` seconds."""
        client = await self._asking_client()
        data, content_type = encode_payload(payload)
        reply: Message = await client.request(
            queue, data, timeout=timeout, content_type=content_type
        )
        return reply

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a coroutine in a handler that is not async, and return its result.

        For example `app.wait(app.put("mails", b"…"))`. In the event loop's thread it raises
        `InvalidValue`, since it would block the loop.
        """
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
        # A virtual-time loop (tidegate.testing) stops its clock while a handler's thread runs. The
        # thread waits for the loop now, so let the clock run.
        moving_on = getattr(loop, "moving_on", contextlib.nullcontext)

        async def waited_for() -> Result:
            with moving_on():
                return await work

        return asyncio.run_coroutine_threadsafe(waited_for(), loop).result()

    async def _asking_client(self) -> EngineClient:
        """Return a separate connection for requests.

        Replies are addressed to the client that asks. On the workers' connection, messages that are
        addressed to the client go to the workers.
        """
        _ = self.engine  # raises unless the app runs
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


async def _queue_made(client: EngineClient, worker: Handler) -> None:
    """Create the queue of a worker if it does not exist.

    It is looked up first, since a user who may read a queue need not be allowed to create one.
    """
    client.adopt_policy(worker.queue, worker.policy)
    try:
        await client.queue(worker.queue)
    except QueueNotExisting:
        await client.create_queue(worker.queue, exist_ok=True, policy=worker.policy)
        log.info("made the queue", extra={"queue": worker.queue})


async def _started(task: asyncio.Task[None], subscribed: asyncio.Event) -> None:
    """Wait until a worker receives messages; raise its error if it ends before that."""
    waiting = asyncio.get_running_loop().create_task(subscribed.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()


async def _ended(tasks: list[asyncio.Task[None]], closing: GracefulShutdown) -> None:
    """Wait until all tasks end; if cancelled meanwhile, stop them at once."""
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
