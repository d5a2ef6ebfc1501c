"""A handler: a function, the queue it serves, and the conversion of a message to its arguments.

The signature is read once, when the worker is declared, so that errors in it are raised there. The
first parameter is the payload, decoded by its annotation, or bytes without one. A parameter that is
annotated `Message` gets the message. A payload that cannot be decoded is rejected, since a retry
would fail, too.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, get_type_hints

from tidegate.client.message import (
    Decode,
    Message,
    Undecodable,
    check_count,
    check_seconds,
    check_text,
    payload_decoder,
)
from tidegate.core.errors import InvalidValue
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel

CONCURRENCY_MAX = 10_000
# One message waits for each running one. This hides the round trip to the node, and is too few to
# hoard messages that other workers could handle.
PREFETCH_PER_SLOT = 2

# A fixed number, a goal to control it to, or a model of the consumer for controlling it.
Prefetch = int | PrefetchGoal | PrefetchModel | None


class Handler:
    """A function and its settings, as declared by `@app.worker(queue)`."""

    def __init__(
        self,
        queue: str,
        function: Callable[..., Any],
        concurrency: int = 1,
        prefetch: Prefetch = None,
        policy: QueuePolicy | None = None,
    ) -> None:
        check_text(queue)
        if not queue:
            raise InvalidValue("a worker's queue has a name that is not empty")
        self.queue = queue
        self.function = function
        self.policy = policy
        self.concurrency = checked_concurrency(concurrency)
        # With a goal, this is the initial prefetch.
        self.prefetch, self.goal = prefetch_and_goal(prefetch, concurrency)
        self._is_async = _is_async(function)
        self._arguments = _Arguments(function)

    def __repr__(self) -> str:
        return f"<Worker {name_of(self.function)} of queue {self.queue!r}>"

    async def call(self, message: Message, threads: HandlerThreads) -> object:
        """Call the function with a message: an async one directly, another one in a thread."""
        if self._is_async:
            by_position, by_name = self._arguments.of(message)
            return await self.function(*by_position, **by_name)

        def call() -> object:
            # Decode in the thread, too: the checks of a model may block.
            by_position, by_name = self._arguments.of(message)
            return self.function(*by_position, **by_name)

        result = await threads.run(call)
        # A function that is not async but returns an awaitable, such as a wrapper of an async
        # function.
        return await result if inspect.isawaitable(result) else result


class _Arguments:
    """Converts a message to the arguments of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name = name_of(function)
        if _generates(function):
            raise InvalidValue(f"{name} is a generator: a worker returns its result")
        # By parameter: its name, or `None` if it is positional only; its decoder, or `None` for the
        # message.
        self._given: list[tuple[str | None, Decode | None]] = []
        payload_seen = False
        for parameter, wanted in _parameters(function, name):
            by_name = None if parameter.kind is parameter.POSITIONAL_ONLY else parameter.name
            if wanted is Message:
                self._given.append((by_name, None))
            elif not payload_seen:
                payload_seen = True
                try:
                    self._given.append((by_name, payload_decoder(wanted)))
                except InvalidValue as failure:
                    raise InvalidValue(f"{name} cannot take its payload: {failure}") from None
            elif parameter.default is parameter.empty:
                raise InvalidValue(
                    f"{name} takes more than a worker is given: {parameter.name!r} is neither the "
                    "payload, which comes first, nor annotated tidegate.Message"
                )
        if not self._given:
            raise InvalidValue(f"{name} takes nothing: a worker takes a payload, or a message")

    def of(self, message: Message) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional arguments and the keyword arguments."""
        by_position: list[Any] = []
        by_name: dict[str, Any] = {}
        for name, decode in self._given:
            try:
                value = message if decode is None else decode(message.payload)
            except Undecodable as failure:
                raise Reject(str(failure)) from failure.__cause__
            if name is None:
                by_position.append(value)
            else:
                by_name[name] = value
        return by_position, by_name


def _parameters(function: Callable[..., Any], name: str) -> list[tuple[inspect.Parameter, Any]]:
    """Return the parameters of a function with their annotations, which default to bytes."""
    annotated = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        hints = get_type_hints(inspect.unwrap(annotated), include_extras=True)
    except NameError as failure:
        raise InvalidValue(
            f"an annotation of {name} cannot be looked up ({failure}): define or import it in the "
            "module, outside functions and `if TYPE_CHECKING`"
        ) from None
    return [
        (parameter, hints.get(parameter.name, bytes))
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _generates(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def checked_concurrency(concurrency: object) -> int:
    if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise InvalidValue(
            f"concurrency is a whole number from 1 to {CONCURRENCY_MAX}, not {concurrency!r}"
        )
    return concurrency


def checked_prefetch(prefetch: int | None, concurrency: int) -> int:
    """Return the prefetch, which defaults to a multiple of the concurrency.

    A prefetch below the concurrency raises `InvalidValue`, since it would limit the concurrency.
    """
    if prefetch is None:
        return PREFETCH_PER_SLOT * concurrency
    check_count("prefetch", prefetch)
    if prefetch < concurrency:
        raise InvalidValue(
            f"a prefetch of {prefetch} keeps a concurrency of {concurrency} from ever being "
            "reached: raise it, or leave it out"
        )
    return prefetch


def prefetch_and_goal(prefetch: Prefetch, concurrency: int) -> tuple[int, PrefetchGoal | None]:
    """Return the initial prefetch, and its goal; `None` means that it stays fixed."""
    if isinstance(prefetch, PrefetchModel):
        prefetch = PrefetchGoal(model=prefetch)
    if not isinstance(prefetch, PrefetchGoal):
        return checked_prefetch(prefetch, concurrency), None
    prefetch.check()
    start = checked_prefetch(None, concurrency) if prefetch.manual is None else prefetch.manual
    return min(max(start, prefetch.low), prefetch.high), prefetch


# Exceptions with which a worker's function decides what happens to its message.


class Reject(Exception):
    """Moves the message to the dead letters at once, with this text as the reason."""


class Retry(Exception):
    """Returns the message to the queue, to be delivered again after `after` seconds.

    `None` means the delay of the queue's policy. It counts as a failed delivery, so after
    `deliveries_max` of them the message goes to the dead letters.
    """

    def __init__(self, text: str = "", *, after: float | None = None) -> None:
        if after is not None:
            check_seconds("after", after, at_least=0.0)
        super().__init__(text)
        self.after = after


def exception_text(error: BaseException) -> str:
    """Return the text of an exception, in characters that UTF-8 can encode.

    A file name in it, for example, may hold lone surrogates. This function never raises, since a
    message whose error cannot be sent would stay held for ever.
    """
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:
        return "(it cannot say why)"


def error_text(error: BaseException) -> str:
    """Return an exception as dead letters keep it: `type: text`."""
    return f"{type(error).__name__}: {exception_text(error)}"


# Threads for handlers that are not async, up to a maximum number.
#
# The standard library's pool joins its threads when the process ends, so one hanging handler would
# keep a worker from stopping. These threads are daemons: they end with the process. The messages of
# handlers that still run have gone back to their queues by then.


class HandlerThreads(Executor):
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


# Meters of a worker's handlers: messages processed, and busy time of its slots.


class HandlerCounts(NamedTuple):
    """Totals since the worker began."""

    messages: int
    # Summed over all slots: two slots that are busy for a second count two.
    busy_s: float


class HandlerMeter:
    """Counts when handlers begin and end."""

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        self.slots = slots
        self._clock = clock
        self._at_work = 0
        self._messages = 0
        self._busy_s = 0.0
        self._counted_at = clock()

    def on_started(self) -> None:
        self._count()
        self._at_work += 1

    def on_finished(self) -> None:
        self._count()
        self._at_work -= 1
        self._messages += 1

    def read(self) -> HandlerCounts:
        self._count()
        return HandlerCounts(self._messages, self._busy_s)

    def _count(self) -> None:
        now = self._clock()
        self._busy_s += self._at_work * (now - self._counted_at)
        self._counted_at = now
