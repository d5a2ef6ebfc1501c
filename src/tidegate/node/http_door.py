"""The HTTP door: /metrics for Prometheus, /healthz and /readyz for whoever keeps nodes alive.

One GET per connection, then it is closed. Three pages without parameters need a request line and
nothing else of HTTP, so the door is our own, and everything about a request has a bound: its bytes,
its time, how many there are. What goes wrong costs that connection. Numbers are read and written a
slice at a time, between which the node goes on; nobody asks the store because somebody asks us.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from tidegate.core.errors import Unavailable
from tidegate.node.server import ALL_ADDRESSES, Node
from tidegate.telemetry.exposition import CONTENT_TYPE, QUEUES_MAX, Exposition
from tidegate.telemetry.numbers import NodeNumbers, QueueNumbers

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_S_MAX = 5.0
ANSWER_S_MAX = 10.0
CONNECTIONS_MAX = 16
# How long we listen to somebody who was refused in mid-sentence, so that the answer gets through.
_LINGER_S_MAX = 1.0
_LINGER_BYTES_MAX = 1024 * 1024
# Queues whose numbers are read in one turn of the loop: a millisecond or so.
_QUEUES_PER_TURN = 16
_TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """What an HTTP request gets."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT
    # Of a HEAD: the same answer, without what it is about.
    bodiless: bool = False

    def head(self) -> bytes:
        allow = "Allow: GET, HEAD\r\n" if self.status == HTTPStatus.METHOD_NOT_ALLOWED else ""
        return (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n"
            f"Cache-Control: no-store\r\n{allow}Connection: close\r\n\r\n"
        ).encode()


def _refusal(status: HTTPStatus, sentence: str) -> Answer:
    return Answer(status, f"{sentence}\n".encode())


class HttpDoor:
    """Shows one node from outside."""

    def __init__(
        self,
        node: Node,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        queues_max: int = QUEUES_MAX,
        request_s_max: float = REQUEST_S_MAX,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> None:
        self._node = node
        self._host = host
        self._port = port
        self._queues_max = queues_max
        self._request_s_max = request_s_max
        self._answer_s_max = answer_s_max
        self._exposition = Exposition()
        # One at a time: a crowd of scrapers must not take every turn of the loop.
        self._writing = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        try:
            self._server = await asyncio.start_server(
                self._visited, self._host, self._port, limit=REQUEST_BYTES_MAX
            )
        except OSError as failure:
            raise Unavailable(
                f"cannot show metrics on {self._host}:{self._port}: {failure.strerror or failure}; "
                "set metrics.port, or metrics.enabled to false"
            ) from None
        port = self._server.sockets[0].getsockname()[1]
        host = socket.gethostname() if self._host in ALL_ADDRESSES else self._host
        self._node.metrics_address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        visits = list(self._visits)
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)

    # A visit

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None
        if len(self._visits) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._visits.add(visit)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            # Cancelled only by `stop`; Python 3.11 would log a visit that ends so as a failure.
            writer.transport.abort()
        except Exception:
            log.exception("a bug while answering over HTTP")
            writer.transport.abort()
        finally:
            self._visits.discard(visit)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._request_s_max):
                request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as end:
            if not end.partial:
                return
            answer = _refusal(HTTPStatus.BAD_REQUEST, "the request ends in the middle")
        except asyncio.LimitOverrunError:
            answer = _refusal(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"a request has at most {REQUEST_BYTES_MAX} bytes",
            )
        except TimeoutError:
            answer = _refusal(
                HTTPStatus.REQUEST_TIMEOUT, f"a request comes within {self._request_s_max:g} s"
            )
        else:
            answer = await self._answer_to(request)
        async with asyncio.timeout(self._answer_s_max):
            writer.write(answer.head())
            if not answer.bodiless:
                writer.write(answer.body)
            writer.write_eof()
            await writer.drain()
            await _linger(reader)

    async def _answer_to(self, request: bytes) -> Answer:
        try:
            method, target, version = request.partition(b"\r\n")[0].decode("ascii").split(" ")
            path = urlsplit(target).path
        except ValueError:
            return _refusal(HTTPStatus.BAD_REQUEST, "this is not HTTP")
        if version not in ("HTTP/1.0", "HTTP/1.1"):
            return _refusal(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1")
        if method not in ("GET", "HEAD"):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "there is only something to GET")
        answer = await self._page(path)
        return answer._replace(bodiless=method == "HEAD")

    async def _page(self, path: str) -> Answer:
        if path == "/metrics":
            async with self._writing:
                return Answer(HTTPStatus.OK, await self._metrics(), CONTENT_TYPE)
        if path == "/healthz":
            return Answer(HTTPStatus.OK, b"alive\n")
        if path == "/readyz":
            reason = self._node.why_not_ready()
            if reason is None:
                return Answer(HTTPStatus.OK, b"ready\n")
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return _refusal(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz")

    # The numbers

    async def _metrics(self) -> bytes:
        pieces = []
        for piece in self._exposition.pieces(await self._numbers()):
            pieces.append(piece)
            await asyncio.sleep(0)
        return b"".join(pieces)

    async def _numbers(self) -> NodeNumbers:
        # The oldest of them: the choice must not change from one scrape to the next.
        owned = sorted(self._node.replicas.items())
        chosen = owned[: self._queues_max]
        queues: list[QueueNumbers] = []
        for _, replica in chosen:
            queues.append(replica.numbers())
            if len(queues) % _QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
        numbers = self._node.own_numbers(queues)
        numbers.queues_left_out = len(owned) - len(chosen)
        return numbers


async def _linger(reader: asyncio.StreamReader) -> None:
    """Closing on unread bytes would reset the connection, and the answer would be lost with it."""
    heard = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S_MAX):
            while heard < _LINGER_BYTES_MAX and (chunk := await reader.read(REQUEST_BYTES_MAX)):
                heard += len(chunk)
