"""Translation of errors of RabbitMQ and aio-pika into Tidegate's errors.

    403 on a channel, or no access to the vhost     Forbidden
    404                                             QueueNotExisting
    405, 406                                        InvalidValue
    a wrong user or password                        NotAuthenticated
    nack of a publish                               LimitReached
    any connection error                            Unavailable

When a channel is lost, aio-pika cancels the calls that wait on it. A CancelledError therefore
counts as a lost connection, unless the calling task itself was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from aio_pika import exceptions
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource, ConnectionNotImplemented
from pamqp.exceptions import PAMQPException

from tidegate.core.errors import (
    Forbidden,
    InvalidValue,
    LimitReached,
    NotAuthenticated,
    QueueNotExisting,
    TidegateError,
    Unavailable,
)

__all__ = ["ConnectionNotImplemented", "as_tidegate", "reaching", "telling"]

_LOST = "the connection to RabbitMQ was lost"
_CUT = ("Server connection reset", "Server connection unexpectedly closed")


@contextlib.contextmanager
def telling(about: str) -> Iterator[None]:
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
        raise as_tidegate(failure, about) from failure


@contextlib.contextmanager
def reaching(shown: str, user: str | None) -> Iterator[None]:
    """Translate errors of connecting to a broker."""
    try:
        with telling(f"RabbitMQ at {shown}"):
            yield
    except NotAuthenticated as refused:
        raise NotAuthenticated(
            f"{refused}: user {user!r} with the password of the URL (TIDEGATE_URL=amqp://USER:"
            "PASSWORD@HOST/)"
        ) from refused
    except Unavailable as nobody:
        raise Unavailable(f"{nobody}: is it running, and is this its address?") from nobody


def as_tidegate(failure: BaseException | None, about: str) -> TidegateError:
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
