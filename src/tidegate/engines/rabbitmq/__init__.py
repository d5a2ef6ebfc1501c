"""RabbitMQ as an engine: the same workers, prefetch control and elastic queues run on it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import InvalidValue

if TYPE_CHECKING:
    from tidegate.client.connect import Connector
    from tidegate.engines.rabbitmq.client import RabbitmqClient


# Without logging configured, Python prints their errors with tracebacks, many a second in an
# outage. This package logs outages itself.
for _library in ("aio_pika", "aiormq"):
    logging.getLogger(_library).addHandler(logging.NullHandler())


def connect(url: str, **connection: Any) -> Connector[RabbitmqClient]:
    """Return what `tidegate.connect("amqp://…")` returns: use it with `async with` or `with`.

    Raises InvalidValue if aio-pika is not installed.
    """
    try:
        import aio_pika  # noqa: F401
    except ModuleNotFoundError as missing:
        raise InvalidValue(
            f"{url.partition('://')[0]}:// needs aio-pika, which is not installed "
            f"({missing}): pip install 'tidegate[rabbitmq]'"
        ) from None
    from tidegate.engines.rabbitmq.client import connector

    return connector(url, **connection)
