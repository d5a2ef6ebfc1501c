"""A small HTTP server for operational pages: /metrics, /healthz, /readyz.

The server answers one GET or HEAD per connection and closes it. The pages have no parameters and
need only a request line, so no HTTP library is used. Every resource of a request is limited: its
bytes, its time, and the number of connections. An error closes only the connection it occurred on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from tidegate.core.errors import Unavailable
from tidegate.core.services import DoorSample
from tidegate.telemetry.prometheus import CONTENT_TYPE, AgreementStats, DoorMetrics

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_S_MAX = 5.0
ANSWER_S_MAX = 10.0
CONNECTIONS_MAX = 16
# How long to read from a client whose request was refused early, so that the answer arrives.
_LINGER_S_MAX = 1.0
_LINGER_BYTES_MAX = 1024 * 1024
_TEXT = "text/plain; charset=utf-8"
# A server that listens on all addresses is known to other machines by its host name.
_ALL_ADDRESSES = ("", "0.0.0.0", "::")


class PageResponse(NamedTuple):
    """The response to an HTTP request."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT
    # Set for HEAD: send the head without the body.
    bodiless: bool = False

    def head(self) -> bytes:
        allow = "Allow: GET, HEAD\r\n" if self.status == HTTPStatus.METHOD_NOT_ALLOWED else ""
        return (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n"
            f"Cache-Control: no-store\r\n{allow}Connection: close\r\n\r\n"
        ).encode()


def error_response(status: HTTPStatus, sentence: str) -> PageResponse:
    return PageResponse(status, f"{sentence}\n".encode())


class PageServer(ABC):
    """A server for a few pages; a subclass provides their content."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        request_s_max: float = REQUEST_S_MAX,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> None:
        self._host = host
        self._port = port
        self._request_s_max = request_s_max
        self._answer_s_max = answer_s_max
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def page(self, path: str) -> PageResponse:
        """Return the response to a GET of a path."""

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

    @property
    def address(self) -> str:
        """The base URL, once the server has started."""
        assert self._server is not None, "it has not started"
        port = self._server.sockets[0].getsockname()[1]
        host = socket.gethostname() if self._host in _ALL_ADDRESSES else self._host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        visits = list(self._visits)
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)

    # One connection.

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
            # Only `stop` cancels. If the error were raised, Python 3.11 would log it as a failure.
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
            answer = error_response(HTTPStatus.BAD_REQUEST, "the request ends in the middle")
        except asyncio.LimitOverrunError:
            answer = error_response(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"a request has at most {REQUEST_BYTES_MAX} bytes",
            )
        except TimeoutError:
            answer = error_response(
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

    async def _answer_to(self, request: bytes) -> PageResponse:
        try:
            method, target, version = request.partition(b"\r\n")[0].decode("ascii").split(" ")
            path = urlsplit(target).path
        except ValueError:
            return error_response(HTTPStatus.BAD_REQUEST, "this is not HTTP")
        if version not in ("HTTP/1.0", "HTTP/1.1"):
            return error_response(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1")
        if method not in ("GET", "HEAD"):
            return error_response(HTTPStatus.METHOD_NOT_ALLOWED, "there is only something to GET")
        answer = await self.page(path)
        return answer._replace(bodiless=method == "HEAD")


async def _linger(reader: asyncio.StreamReader) -> None:
    """Read the rest of a request before the connection closes.

    Closing a socket with unread bytes resets the connection, and the client may lose the answer.
    """
    heard = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S_MAX):
            while heard < _LINGER_BYTES_MAX and (chunk := await reader.read(REQUEST_BYTES_MAX)):
                heard += len(chunk)


# The operational pages of a door process: /metrics, /healthz and /readyz, on a separate port.
#
# The pages show the newest sample that the door process passes in every second. A request for a
# page therefore costs the door nothing. A door is ready while at least one instance is not ejected
# and the door reports no trouble.


class DoorPages(PageServer):
    """The pages of one door."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(host=host, port=port)
        self._exposition = DoorMetrics()
        self._sample: DoorSample | None = None

    def update(self, sample: DoorSample, standings: Iterable[AgreementStats] = ()) -> None:
        """Store the newest sample and agreement statuses, for all following requests."""
        self._sample = sample
        self._exposition.update(sample, standings)

    async def page(self, path: str) -> PageResponse:
        if path == "/metrics":
            return PageResponse(HTTPStatus.OK, self._exposition.text(), CONTENT_TYPE)
        if path == "/healthz":
            return PageResponse(HTTPStatus.OK, b"alive\n")
        if path == "/readyz":
            reason = self._why_not_ready()
            if not reason:
                return PageResponse(HTTPStatus.OK, b"ready\n")
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return error_response(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz")

    def _why_not_ready(self) -> str:
        if self._sample is None:
            return "the door has not begun yet"
        if self._sample.trouble:
            return self._sample.trouble
        if not any(one.ejected is None for one in self._sample.instances):
            return f"there is no instance of {self._sample.service} that could answer"
        return ""
