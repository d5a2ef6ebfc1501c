"""Refusals by the broker about elastic queues, translated into errors that say what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aiormq import exceptions as amqp

from tidegate.adapters.rabbitmq.failures import telling
from tidegate.core.errors import InvalidValue, Unavailable

PLUGIN = "rabbitmq_consistent_hash_exchange"


class InTheWay(InvalidValue):
    """The broker has an object of another kind, not empty, or in use."""


class Locked(Unavailable):
    """Another connection holds an exclusive queue."""


@contextlib.contextmanager
def told(about: str) -> Iterator[None]:
    """Translate the refusals and connection errors of calls inside into errors about `about`."""
    with telling(about):
        try:
            yield
        except amqp.ChannelLockedResource as locked:
            raise Locked(f"{about}: {locked}") from locked
        except amqp.ChannelPreconditionFailed as other:
            raise InTheWay(f"{about}: {other}") from other
        except amqp.ConnectionCommandInvalid as unknown:
            if "exchange type" not in str(unknown):
                raise
            raise InvalidValue(
                f"{about}: the broker has no x-consistent-hash exchanges: "
                f"`rabbitmq-plugins enable {PLUGIN}`"
            ) from unknown
        except amqp.ConnectionNotImplemented as unknown:
            raise InvalidValue(f"{about}: {unknown}") from unknown
