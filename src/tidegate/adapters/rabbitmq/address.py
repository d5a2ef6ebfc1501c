"""Parsing of `amqp://user:password@host:port/vhost?queue_type=quorum`.

    queue_type     classic (default) or quorum: the type of queues that the client creates
    max_priority   number of priorities of classic queues that the client creates; default: none

Tidegate keeps these two parameters and passes all others to aio-pika (`heartbeat`, `timeout`,
`name`, …).
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import NamedTuple

from yarl import URL

from tidegate.client.address import shown
from tidegate.client.credentials import password_in
from tidegate.client.tls import verifying_context
from tidegate.core.errors import InvalidValue
from tidegate.core.model import PRIORITY_HIGHEST

QUEUE_TYPES = ("classic", "quorum")
_PORTS = {"amqp": 5672, "amqps": 5671}


class RabbitmqAddress(NamedTuple):
    """The parts of a broker's URL."""

    # With the password, without Tidegate's own parameters.
    url: URL
    # Without the password, for logs and errors.
    shown: str
    queue_type: str
    max_priority: int | None
    tls: ssl.SSLContext | None


def parse_address(
    url: str,
    *,
    name: str | None = None,
    user: str | None = None,
    password: str | None = None,
    password_file: str | os.PathLike[str] | None = None,
    tls: bool | ssl.SSLContext | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> RabbitmqAddress:
    """Parse a URL and the options beside it; raise InvalidValue if they contradict each other.

    Options override the URL. Without a user, `guest` is used, whom RabbitMQ accepts from its own
    machine only.
    """
    try:
        parsed = URL(url)
        port = parsed.port
    except ValueError as failure:
        raise InvalidValue(f"{shown(url)} is no URL: {failure}") from None
    if not parsed.host:
        raise InvalidValue(f"{shown(url)} names no host: write amqp://user:password@host:port/")
    if tls and parsed.scheme == "amqp":
        parsed = parsed.with_scheme("amqps")
    if tls is False and parsed.scheme == "amqps":
        raise InvalidValue(f"tls=False, but {shown(url)} asks for TLS: write amqp://")
    if ca_file is not None and parsed.scheme != "amqps":
        raise InvalidValue("ca_file= is for TLS: write amqps:// or tls=True")
    if password is None and password_file is not None:
        password = password_in(Path(password_file))
    if user is not None:
        parsed = parsed.with_user(user)
    if password is not None:
        parsed = parsed.with_password(password)
    if parsed.user is None:
        # RabbitMQ's default user, accepted over loopback only.
        parsed = parsed.with_user("guest").with_password(parsed.password or "guest")
    query = dict(parsed.query)
    if name is not None:
        query["name"] = name
    queue_type = query.pop("queue_type", QUEUE_TYPES[0])
    if queue_type not in QUEUE_TYPES:
        raise InvalidValue(
            f"queue_type is {' or '.join(QUEUE_TYPES)}, not {queue_type!r}, in {shown(url)}"
        )
    max_priority = _max_priority(query.pop("max_priority", None), queue_type, url)
    return RabbitmqAddress(
        parsed.with_query(query).with_port(port or _PORTS[parsed.scheme]),
        shown(url),
        queue_type,
        max_priority,
        _context(parsed.scheme, tls, ca_file),
    )


def _max_priority(text: str | None, queue_type: str, url: str) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or not 1 <= int(text) <= 255:
        raise InvalidValue(
            f"max_priority is from 1 to 255, not {text!r}, in {shown(url)}: puts have priorities "
            f"up to {PRIORITY_HIGHEST}"
        )
    if queue_type != "classic":
        raise InvalidValue(f"max_priority is for classic queues, not {queue_type} ones")
    return int(text)


def _context(
    scheme: str,
    tls: bool | ssl.SSLContext | None,
    ca_file: str | os.PathLike[str] | None,
) -> ssl.SSLContext | None:
    if isinstance(tls, ssl.SSLContext):
        return tls
    if scheme != "amqps":
        return None
    return verifying_context(None if ca_file is None else Path(ca_file))
