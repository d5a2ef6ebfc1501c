"""What the broker refuses about an elastic queue, in words that say what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aiormq import exceptions as amqp

from tidegate.adapters.rabbitmq.failures import telling
from tidegate.core.errors import InvalidValue, Unavailable

PLUGIN = "rabbitmq_consistent_hash_exchange"


class InTheWay(InvalidValue):
    """The broker has something else than was expected: another kind, not empty, in use."""


class Locked(Unavailable):
    """Somebody else has what only one can have."""


@contextlib.contextmanager
def told(about: str) -> Iterator[None]:
    """Whatever the broker or the way to it refuses becomes an error of ours about `about`."""
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
