"""The client of RabbitMQ's management API: rates and unacknowledged messages, which AMQP lacks.

It uses the standard library's HTTP client in a thread: one small request per period needs no
further dependency.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import re
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from tidegate.client.address import shown
from tidegate.core.errors import Forbidden, InvalidValue, TidegateError, Unavailable

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
                f"--management {shown(address)}: must be such as http://127.0.0.1:{PORT}"
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
