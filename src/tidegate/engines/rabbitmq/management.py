"""The client of RabbitMQ's management API: rates and unacknowledged messages, which AMQP lacks.

It uses the standard library's HTTP client in a thread: one small request per period needs no
further dependency.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import aio_pika
import msgspec
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue

from tidegate.client.address import redact_url
from tidegate.core.errors import Forbidden, InvalidValue, TidegateError, Unavailable
from tidegate.core.prefetch import PROBE_BYTES_MAX
from tidegate.engines.probe import PREFETCH_FIRST, ProbeConsumer
from tidegate.engines.rabbitmq.client import RabbitmqAddress, parse_address
from tidegate.engines.rabbitmq.connection import translating_connect_errors, translating_errors

PORT = 15672
_ANSWER_S = 3.0
_ANSWER_BYTES_MAX = 16 << 20
_READ_BYTES = 1 << 16
_COLUMNS = ",".join(
    (
        *("name", "type", "arguments", "messages_ready", "messages_unacknowledged", "consumers"),
        *("message_stats.publish", "message_stats.publish_details.rate"),
        *("message_stats.ack", "message_stats.ack_details.rate", "head_message_timestamp"),
        *("messages", "message_bytes"),
    )
)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that refuses redirects: the password would be sent to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects())


def _whole(answer: http.client.HTTPResponse) -> bytes:
    """Read the whole response, within the timeout in total and up to a maximum size."""
    deadline = time.monotonic() + _ANSWER_S
    parts: list[bytes] = []
    while part := answer.read1(_READ_BYTES):
        parts.append(part)
        if time.monotonic() > deadline or sum(map(len, parts)) > _ANSWER_BYTES_MAX:
            raise TimeoutError("too slow or too long")
    return b"".join(parts)


class _Rate(msgspec.Struct, frozen=True):
    rate: float = 0.0


class _MessageStats(msgspec.Struct, frozen=True):
    publish: int = 0
    ack: int = 0
    publish_details: _Rate = _Rate()
    ack_details: _Rate = _Rate()


class ManagedQueue(msgspec.Struct, frozen=True):
    """A queue's statistics, some seconds old."""

    name: str
    type: str = "classic"
    arguments: dict[str, Any] = {}
    # None for a queue that was just created.
    messages_ready: int | None = None
    messages_unacknowledged: int | None = None
    consumers: int = 0
    message_stats: _MessageStats = _MessageStats()
    # Seconds since 1970, if the messages have timestamps; classic queues only.
    head_message_timestamp: int | None = None
    # Ready and unacknowledged messages, and the bytes of their payloads.
    messages: int | None = None
    message_bytes: int | None = None


def usual_address(host: str | None) -> str:
    """Return the default address of the management API on a host."""
    name = f"[{host}]" if host and ":" in host else host
    return f"http://{name}:{PORT}"


class ManagementApi:
    """The queues of one virtual host, by HTTP requests to one broker."""

    def __init__(self, address: str, user: str, password: str, vhost: str) -> None:
        try:
            parts = urlsplit(address)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port  # raises ValueError if it is no number
        except ValueError:
            is_address = False
        if not is_address:
            raise InvalidValue(
                f"--management {redact_url(address)}: must be such as http://127.0.0.1:{PORT}"
            )
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self.address = self.address.removesuffix("/api")
        self._vhost = quote(vhost, safe="")
        given = unquote(parts.username or ""), unquote(parts.password or "")
        login = f"{given[0] or user}:{given[1] or password}"
        self._authorization = f"Basic {base64.b64encode(login.encode()).decode()}"

    async def queues(self, logical: str) -> list[ManagedQueue]:
        """Return the statistics of a queue and its replicas, in one request."""
        pattern = f"^{re.escape(logical)}(#[0-9]+)?$"
        found = await self._get(
            f"/api/queues/{self._vhost}?page=1&page_size=500&use_regex=true"
            f"&name={quote(pattern, safe='')}&columns={_COLUMNS}"
        )
        try:
            managed = msgspec.convert(found["items"], list[ManagedQueue], strict=False)
        except (KeyError, TypeError, msgspec.ValidationError) as strange:
            raise Unavailable(f"{self.address} is no management API: {strange}") from None
        return [one for one in managed if re.fullmatch(pattern, one.name)]

    async def _get(self, path: str) -> Any:
        return await asyncio.to_thread(self._ask, self.address + path)

    def _ask(self, url: str) -> Any:
        request = urllib.request.Request(url, headers={"Authorization": self._authorization})
        try:
            # The operator configures the address, and the constructor allows only http and https.
            with _OPENER.open(request, timeout=_ANSWER_S) as answer:
                return json.loads(_whole(answer))
        except urllib.error.HTTPError as refusal:
            raise self._refused(refusal.code) from None
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as failure:
            reason = getattr(failure, "reason", failure)
            raise Unavailable(
                f"the management API at {self.address} does not answer ({reason}): "
                "`rabbitmq-plugins enable rabbitmq_management`, or --management says where it is"
            ) from None

    def _refused(self, status: int) -> TidegateError:
        if status in (401, 403):
            return Forbidden(
                f"the management API at {self.address} refuses this user: "
                "`rabbitmqctl set_user_tags USER monitoring`"
            )
        return Unavailable(f"the management API at {self.address} answers {status}")


# A probe consumer on RabbitMQ, on a temporary queue.
#
# The queue in question is only declared passively. The probe's prefetch changes live by
# AMQP's basic.qos (with `global=true`) on a channel of its own, which classic queues support.


SIZE_BYTES_DEFAULT = 256
CONNECT_S = 10.0
# Lifetime of the queue if the probe is killed before it consumes.
UNUSED_MS = 60_000


async def rabbitmq_probe(
    url: str, queue: str, *, handler_s: float, size_bytes: int | None
) -> ProbeConsumer:
    """Connect and open a probe beside `queue`.

    `size_bytes` None means the mean size of the waiting messages. Raises QueueNotExisting,
    Forbidden, NotAuthenticated or Unavailable.
    """
    address = parse_address(url)
    async with contextlib.AsyncExitStack() as opened:
        feeding = await opened.enter_async_context(await _connected(address))
        consuming = await opened.enter_async_context(await _connected(address))
        with translating_errors(f"queue {queue!r} at {address.shown}"):
            async with consuming.channel() as looking:
                await looking.declare_queue(queue, passive=True)
        if size_bytes is None:
            size_bytes = min(await _size_of_messages(address, queue), PROBE_BYTES_MAX)
        own = RabbitmqProbeQueue(feeding, consuming)
        probe = ProbeConsumer(own, queue, handler_s=handler_s, size_bytes=size_bytes)
        with translating_errors("a queue for the probe (amq.gen-…); --worker needs none"):
            await probe.open()
        # The probe closes the connections from here on.
        opened.pop_all()
    return probe


class RabbitmqProbeQueue:
    """A `ProbeQueue` on two connections: RabbitMQ throttles a publishing one, and its acks too."""

    # Each put costs 0.1 ms of the event loop, which also consumes.
    put_at_once = 50

    def __init__(self, feeding: AbstractConnection, consuming: AbstractConnection) -> None:
        self._feeding = feeding
        self._consuming = consuming
        self._puts: AbstractChannel | None = None
        self._takes: AbstractChannel | None = None
        self._queue: AbstractQueue | None = None

    @property
    def name(self) -> str:
        return "" if self._queue is None else self._queue.name

    async def open(self) -> None:
        self._takes = await self._consuming.channel(publisher_confirms=False)
        await self._takes.set_qos(PREFETCH_FIRST, global_=True)
        # Not exclusive, since another connection feeds it. RabbitMQ deletes it with its last
        # consumer.
        self._queue = await self._takes.declare_queue(
            auto_delete=True, arguments={"x-expires": UNUSED_MS}
        )
        self._puts = await self._feeding.channel(publisher_confirms=False)

    async def put(self, payloads: list[bytes]) -> None:
        assert self._puts is not None
        for payload in payloads:
            await self._puts.default_exchange.publish(aio_pika.Message(payload), self.name)

    async def consume(self, handle: Callable[[], Awaitable[None]]) -> None:
        assert self._queue is not None

        async def turn(message: AbstractIncomingMessage) -> None:
            await handle()
            # If the channel is closed, the queue and its messages are deleted anyway.
            with contextlib.suppress(aio_pika.exceptions.AMQPError, RuntimeError):
                await message.ack()

        await self._queue.consume(turn)

    async def apply_prefetch(self, prefetch: int) -> None:
        assert self._takes is not None
        await self._takes.set_qos(prefetch, global_=True)

    async def close(self) -> None:
        if self._queue is not None:
            # RabbitMQ would delete it with its last consumer; this does it at once.
            with contextlib.suppress(aio_pika.exceptions.AMQPError, RuntimeError):
                await self._queue.delete(if_unused=False, if_empty=False)
        await self._feeding.close()
        await self._consuming.close()


async def _connected(address: RabbitmqAddress) -> AbstractConnection:
    with translating_connect_errors(address.shown, address.url.user):
        return await aio_pika.connect(address.url, timeout=CONNECT_S, ssl_context=address.tls)


async def _size_of_messages(address: RabbitmqAddress, queue: str) -> int:
    """Return the mean size of waiting messages by the management API, or the default."""
    url = address.url
    try:
        api = ManagementApi(
            usual_address(url.host), url.user or "", url.password or "", url.path[1:] or "/"
        )
        found = [one for one in await api.queues(queue) if one.name == queue]
    except TidegateError:
        return SIZE_BYTES_DEFAULT
    waiting = sum(one.messages or 0 for one in found)
    if not waiting:
        return SIZE_BYTES_DEFAULT
    return round(sum(one.message_bytes or 0 for one in found) / waiting)
