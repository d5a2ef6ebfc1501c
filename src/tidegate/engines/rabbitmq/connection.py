"""A connection to RabbitMQ that reconnects by itself.

Theory of operation.

A `RabbitmqConnection` wraps aio-pika's plain connection. One task waits for its end and makes
another one, for as long as it takes, with growing pauses. aio-pika's robust connection is not used:
it would reopen channels and consumers. Delivery tags belong to one channel, so a late
acknowledgement could settle another message. The users of this class open their channels again
themselves.

States:

    not opened    with `opens_when_needed`: the first call opens it
    connected     `_up` is set
    lost          `_up` is cleared; `_failure` says why; calls wait up to `reconnect_s`
    closed        all calls raise Unavailable

If the failure is permanent (a wrong password, say), calls raise it at once.

Blocked publishers. While RabbitMQ is short of memory or disk, it reads nothing from a connection
that has published, acknowledgements included. So a client publishes on a second connection, which
is opened with its first publish. `unblocked` and `unless_blocked` bound the wait of a publish.

Logging. aiormq logs an error for each failed attempt to connect, once a second in an outage. A
filter drops these records for connections of this class. `OutageTracker` logs the loss and the
recovery once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import aio_pika
from aio_pika import exceptions
from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource
from pamqp import decode
from pamqp.exceptions import PAMQPException

from tidegate.core.errors import (
    Forbidden,
    InvalidValue,
    LimitReached,
    NotAuthenticated,
    QueueNotExisting,
    RetryLater,
    TidegateError,
    Unavailable,
)

if TYPE_CHECKING:
    from tidegate.engines.rabbitmq.client import RabbitmqAddress


log = logging.getLogger(__name__)

_CONNECT_S = 5.0
_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
_CLOSE_S = 5.0
_PAUSE_S = 0.02
# How often a publish past its deadline checks whether RabbitMQ blocks it.
_CHECK_S = 0.25
# A connection that ends sooner was probably closed because of its own traffic. The same traffic
# would close the next one, so the backoff continues.
_YOUNG_S = 5.0
Result = TypeVar("Result")


_is_ours = ContextVar("_is_ours", default=False)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    return not (_is_ours.get() and str(record.msg).startswith("error when creating transport"))


class ReconnectPolicy:
    """The deadline of one call that is retried across lost connections."""

    def __init__(self, connection: RabbitmqConnection) -> None:
        self._connection = connection
        self.deadline = asyncio.get_running_loop().time() + connection.reconnect_s

    async def wait(self, failure: TidegateError) -> None:
        """Pause before a retry; raise `failure` after the deadline, or if closed."""
        if self._connection.is_closed or asyncio.get_running_loop().time() >= self.deadline:
            raise failure
        await asyncio.sleep(_PAUSE_S)


class RabbitmqConnection:
    """A reconnecting connection of one client to its broker."""

    def __init__(
        self,
        address: RabbitmqAddress,
        reconnect_s: float,
        outage: OutageTracker | None = None,
        *,
        opens_when_needed: bool = False,
    ) -> None:
        self.address = address
        self._outage = outage or OutageTracker(address.shown)
        self._opens_when_needed = opens_when_needed
        self._opening = asyncio.Lock()
        self.reconnect_s = reconnect_s
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._up = asyncio.Event()
        # Why there is no connection. An error other than RetryLater is raised at once.
        self._failure: TidegateError = InvalidValue(
            "not connected: use `async with tidegate.connect(url) as mq`"
        )
        self.is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        read_leniently()
        # Adding the same filter twice has no effect.
        logging.getLogger("aiormq.connection").addFilter(_is_worth_logging)
        await self._connect()
        self.spawn(self._stay_connected())

    async def _open_late(self) -> None:
        """Open the connection with its first use; in an outage, keep trying in the background."""
        async with self._opening:
            if self._opens_when_needed and not self.is_closed:
                try:
                    await self.open()
                except RetryLater as failure:
                    self._failure = failure
                    self.spawn(self._stay_connected())
                self._opens_when_needed = False

    async def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        async with self._opening:
            pass  # wait for an opening under way, so that it is closed below
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        # Wake the waiting calls, which then raise Unavailable.
        self._up.set()
        self._outage.remove(self)
        await self._hang_up()

    async def _hang_up(self) -> None:
        if self._connection is not None:
            # Do not wait for a broker that does not answer.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_S):
                    await self._connection.close()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task until the client closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` to completion even if the caller is cancelled.

        Half a call would close its channel.
        """
        task = self.spawn(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        result: Result = await asyncio.shield(task)
        return result

    async def connected(self) -> AbstractConnection:
        """Return the connection; wait up to `reconnect_s` seconds for one."""
        if self._opens_when_needed:
            await self._open_late()
        self._check_open()
        if self._up.is_set() and self._transport().is_closed:
            # The transport closed, and `_stay_connected` has not noticed yet. A caller that retries
            # at once would prevent it from running.
            self._up.clear()
        if not self._up.is_set():
            if not isinstance(self._failure, RetryLater):
                raise self._failure
            try:
                async with asyncio.timeout(self.reconnect_s):
                    await self._up.wait()
            except TimeoutError:
                raise self._failure from None
            self._check_open()
        return self._transport()

    def _check_open(self) -> None:
        if self.is_closed:
            raise Unavailable("the client is closed")

    async def channel(self, *, confirms: bool = False) -> AbstractChannel:
        """Open a channel; `confirms` enables publisher confirms."""
        patience = ReconnectPolicy(self)
        while True:
            connection = await self.connected()
            try:
                with translating_errors(f"RabbitMQ at {self.address.shown}"):
                    return await connection.channel(
                        publisher_confirms=confirms, on_return_raises=confirms, timeout=_CONNECT_S
                    )
            except Unavailable as lost:
                await patience.wait(lost)

    @property
    def is_blocked(self) -> bool:
        """Whether RabbitMQ reads nothing from this connection because memory or disk is short."""
        return not self.is_closed and self._up.is_set() and _is_blocked(self._transport())

    async def unblocked(self, patience: ReconnectPolicy) -> None:
        """Wait until RabbitMQ reads from the connection; raise Unavailable at the deadline."""
        clock = asyncio.get_running_loop().time
        while _is_blocked(connection := await self.connected()):
            if (left_s := patience.deadline - clock()) <= 0:
                raise self.blocked()
            ready = asyncio.ensure_future(connection.ready())
            # aiormq does not wake a waiter when the connection ends, so wait for the end too.
            await asyncio.wait(
                {ready, connection.closing}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            ready.cancel()

    @contextlib.asynccontextmanager
    async def unless_blocked(self, patience: ReconnectPolicy) -> AsyncIterator[None]:
        """Abort the calls inside after the deadline, once RabbitMQ blocks the connection.

        Without blocking they may take longer than the deadline.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            if self.is_blocked:
                limit.reschedule(loop.time())
            else:
                timer = loop.call_later(_CHECK_S, look)

        timer = loop.call_at(patience.deadline, look)
        try:
            async with asyncio.timeout(None) as limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise self.blocked() from None
            raise
        finally:
            timer.cancel()

    def blocked(self) -> Unavailable:
        return Unavailable(
            f"RabbitMQ at {self.address.shown} has blocked publishers (connection.blocked): it is "
            "short of memory or disk, its log says of which. Let consumers drain its queues, or "
            "give it more"
        )

    def _transport(self) -> AbstractConnection:
        assert self._connection is not None
        assert self._connection.transport is not None
        return self._connection.transport.connection

    async def _connect(self) -> None:
        _is_ours.set(True)
        connection = aio_pika.Connection(self.address.url, ssl_context=self.address.tls)
        try:
            with translating_connect_errors(self.address.shown, self.address.url.user):
                await connection.connect(timeout=_CONNECT_S)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        self._failure = Unavailable(f"the connection to RabbitMQ at {self.address.shown} was lost")
        self._up.set()

    async def _stay_connected(self) -> None:
        """Make another connection whenever the present one has ended."""
        backoff_s, clock = _BACKOFF_FIRST_S, asyncio.get_running_loop().time
        while True:
            connected_at = clock()
            if self._connection is not None:
                lost = self._transport().closing
                await asyncio.wait({lost})
                if not lost.cancelled():
                    lost.exception()  # retrieved, so that asyncio does not report it
                self._up.clear()
                await self._hang_up()
            self._outage.begins_for(self)
            if clock() - connected_at > _YOUNG_S:
                backoff_s = _BACKOFF_FIRST_S
            while not self._up.is_set():
                # Random pauses, so that many clients do not reconnect at the same moment.
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
                try:
                    await self._connect()
                except TidegateError as failure:
                    self._failure = failure
                except Exception as failure:
                    # Another program may answer at this address for now; the broker may come back.
                    log.exception("connecting to RabbitMQ failed strangely")
                    self._failure = Unavailable(f"RabbitMQ at {self.address.shown}: {failure!r}")
            self._outage.ends_for(self)


def _is_blocked(connection: AbstractConnection) -> bool:
    # aiormq offers no flag, so poll its awaitable once.
    waiting = connection.ready()
    try:
        waiting.send(None)
    except StopIteration:
        return False
    waiting.close()
    return True


# Logging of an outage once, even if a client loses several connections.
#
# The first lost connection logs the loss, and the last one that returns logs the recovery.


class OutageTracker:
    """The lost connections of one client."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._lost: set[object] = set()

    def begins_for(self, connection: object) -> None:
        if not self._lost:
            log.warning("the connection to RabbitMQ was lost", extra={"url": self._shown})
        self._lost.add(connection)

    def ends_for(self, connection: object) -> None:
        if connection in self._lost:
            self._lost.discard(connection)
            if not self._lost:
                log.info("connected to RabbitMQ again", extra={"url": self._shown})

    def remove(self, connection: object) -> None:
        """Remove a connection whose client is closed."""
        self._lost.discard(connection)


# Lenient decoding of AMQP fields that pamqp rejects.
#
# RabbitMQ delivers everything that a producer has written: text that is not UTF-8 (old programs
# write Latin-1), times in nanoseconds, deeply nested tables. pamqp raises an error for these. Then
# the connection closes, the message returns to its queue, and the same happens on the next
# connection, without end.
#
# So these decoders take over where pamqp's fail. A text gets replacement characters, an invalid
# time becomes None, and headers that are nested too deeply become empty.


_TIME_BYTES = 8
_LENGTH = struct.Struct(">I")


def read_leniently() -> None:
    """Install the decoders in pamqp, for the whole process."""
    decode.METHODS |= {"shortstr": _short_text, "timestamp": _time, "table": _headers}
    decode.TABLE_MAPPING |= {b"T": _time, b"F": _table}


def _short_text(value: bytes) -> tuple[int, str]:
    length = value[0] if value else 0
    if not value or len(value) < 1 + length:
        raise ValueError("a text is cut off")
    return 1 + length, value[1 : 1 + length].decode(errors="replace")


def _time(value: bytes) -> tuple[int, Any]:
    try:
        return decode.timestamp(value)
    except (ValueError, OverflowError, OSError):
        if len(value) < _TIME_BYTES:
            raise
        return _TIME_BYTES, None


def _headers(value: bytes) -> tuple[int, dict[str, Any]]:
    try:
        return _table(value)
    except RecursionError:
        return _LENGTH.size + _LENGTH.unpack_from(value)[0], {}


def _table(value: bytes) -> tuple[int, dict[str, Any]]:
    try:
        return decode.field_table(value)
    except UnicodeDecodeError:
        return _table_of_strange_names(value)


def _table_of_strange_names(value: bytes) -> tuple[int, dict[str, Any]]:
    offset = _LENGTH.size
    end = offset + _LENGTH.unpack_from(value)[0]
    found: dict[str, Any] = {}
    while offset < end:
        consumed, name = _short_text(value[offset:])
        offset += consumed
        consumed, found[name] = decode.embedded_value(value[offset:])
        offset += consumed
    return end, found


# Translation of errors of RabbitMQ and aio-pika into Tidegate's errors.
#
#     403 on a channel, or no access to the vhost     Forbidden
#     404                                             QueueNotExisting
#     405, 406                                        InvalidValue
#     a wrong user or password                        NotAuthenticated
#     nack of a publish                               LimitReached
#     any connection error                            Unavailable
#
# When a channel is lost, aio-pika cancels the calls that wait on it. A CancelledError therefore
# counts as a lost connection, unless the calling task itself was cancelled.


_LOST = "the connection to RabbitMQ was lost"
_CUT = ("Server connection reset", "Server connection unexpectedly closed")


@contextlib.contextmanager
def translating_errors(about: str) -> Iterator[None]:
    """Translate errors of aio-pika calls inside into Tidegate errors about `about`."""
    try:
        yield
    except TidegateError:
        raise
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Unavailable(f"{about}: {_LOST}") from cancelled
    except (*exceptions.CONNECTION_EXCEPTIONS, PAMQPException, TimeoutError, EOFError) as failure:
        raise to_tidegate_error(failure, about) from failure


@contextlib.contextmanager
def translating_connect_errors(shown: str, user: str | None) -> Iterator[None]:
    """Translate errors of connecting to a broker."""
    try:
        with translating_errors(f"RabbitMQ at {shown}"):
            yield
    except NotAuthenticated as refused:
        raise NotAuthenticated(
            f"{refused}: user {user!r} with the password of the URL (TIDEGATE_URL=amqp://USER:"
            "PASSWORD@HOST/)"
        ) from refused
    except Unavailable as nobody:
        raise Unavailable(f"{nobody}: is it running, and is this its address?") from nobody


def to_tidegate_error(failure: BaseException | None, about: str) -> TidegateError:
    """Return the Tidegate error for an error of aio-pika."""
    if isinstance(failure, TidegateError):
        return failure
    text = f"{about}: {_text(failure)}"
    if isinstance(failure, exceptions.PublishError):
        return QueueNotExisting(f"{about}: RabbitMQ has no such queue: create it first")
    if isinstance(failure, exceptions.DeliveryError):
        return LimitReached(f"{about}: RabbitMQ refused it, because the queue is full or failing")
    if isinstance(failure, exceptions.InvalidFrameError) and "Connection.OpenOk" in text:
        # aio-pika discards the broker's own text here.
        return Forbidden(
            f"{about}: there is no such vhost, or the user may not come there: `rabbitmqctl "
            "add_vhost` and `set_permissions`"
        )
    if isinstance(failure, ChannelAccessRefused):
        return Forbidden(f"{text}: `rabbitmqctl set_permissions` gives permissions")
    if isinstance(failure, exceptions.ChannelNotFoundEntity):
        if "inaccessible" in text:
            return Unavailable(text)
        return QueueNotExisting(text)
    if isinstance(failure, exceptions.ChannelPreconditionFailed | ChannelLockedResource):
        return InvalidValue(text)
    if isinstance(failure, exceptions.AuthenticationError | exceptions.ProbableAuthenticationError):
        return NotAuthenticated(f"{about}: RabbitMQ refuses the user or the password")
    return Unavailable(text)


def _text(failure: BaseException | None) -> str:
    if failure is None:
        return _LOST
    if isinstance(failure.__cause__ or failure, ConnectionRefusedError):
        return "Connection refused"  # asyncio and uvloop word it differently
    if failure.args and isinstance(failure.args[-1], str):
        return _LOST if _is_lost(failure.args[-1]) else failure.args[-1]
    return f"{failure}" or type(failure).__name__


def _is_lost(text: str) -> bool:
    """Return whether a text of the library says that the connection is closed."""
    # A text that begins with a repr names the closed object in memory.
    return text.startswith(("<", *_CUT))
