"""RabbitMQ as an engine: the same workers, prefetch control and elastic queues on it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import InvalidValue

if TYPE_CHECKING:
    from tidegate.adapters.rabbitmq.client import RabbitmqClient
    from tidegate.client.connect import Connector

# Of an outage they print tracebacks to programs that have set up no logging, many a second; what
# there is to say about it we log ourselves.
for _library in ("aio_pika", "aiormq"):
    logging.getLogger(_library).addHandler(logging.NullHandler())


def connect(url: str, **connection: Any) -> Connector[RabbitmqClient]:
    """What `tidegate.connect("amqp://…")` gives: `async with` or `with` it."""
    try:
        import aio_pika  # noqa: F401
    except ModuleNotFoundError as missing:
        raise InvalidValue(
            f"{url.partition('://')[0]}:// needs aio-pika, which is not installed "
            f"({missing}): pip install 'tidegate[rabbitmq]'"
        ) from None
    from tidegate.adapters.rabbitmq.client import connector

    return connector(url, **connection)
