"""Clients of the bookshop, each with one request at a time (a closed loop).

A client goes through sessions of ten operations. Each session has one connection and one set of
cookies, like a browser that is opened and closed again. Slow answers reduce the number of requests.

The response time is the time that a user waits, up to the last byte of the answer. It includes the
connection if there is none yet. An operation fails if it gets no answer, none in time, or a status
of 500 or above. A failed operation is counted and never repeated. If there was no answer, the
session continues over a new connection.

The clients use asyncio protocols instead of streams, because they share two cores with the servers
that they measure.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import cast

import httptools
import msgspec

from tidegate.lab.tapas.bookshop import BOOKS

SESSION = (
    *("choose", "add", "choose", "add", "remove"),
    *("choose", "add", "choose", "buy", "confirm"),
)
# The session for the second cluster (figures 19 and 20).
SESSION_OF_ELEVEN = ("choose", *SESSION)
_ASKS_ONLY = "choose"
# The status of a request without an answer, or without an answer in time.
NO_ANSWER = 0
TIMEOUT_S = 30.0


class Crowd(msgspec.Struct, frozen=True):
    """A group of clients and their behaviour."""

    # Loopback ports, assigned to the clients in turn.
    ports: Sequence[int]
    clients: int
    # Sessions of each client; None means until `seconds` are over.
    sessions: int | None = 10
    seconds: float | None = None
    session: Sequence[str] = SESSION
    # Seconds between the arrivals of two clients.
    ramp_s: float = 0.0
    # Seconds from an answer to the next request.
    think_s: float = 0.0
    timeout_s: float = TIMEOUT_S
    seed: int = 7


class Requests(msgspec.Struct):
    """All requests in the order of their ends; times are of the monotonic clock."""

    ended_at: list[float] = []
    took_s: list[float] = []
    status: list[int] = []

    def __len__(self) -> int:
        return len(self.took_s)

    def add(self, ended_at: float, took_s: float, status: int) -> None:
        self.ended_at.append(ended_at)
        self.took_s.append(took_s)
        self.status.append(status)

    def between(self, begin_s: float, end_s: float) -> Requests:
        """Return the requests that ended in this period, `end_s` excluded."""
        found = Requests()
        for ended_at, took_s, status in self:
            if begin_s <= ended_at < end_s:
                found.add(ended_at, took_s, status)
        return found

    def __iter__(self) -> Iterator[tuple[float, float, int]]:
        return zip(self.ended_at, self.took_s, self.status, strict=True)

    @property
    def failed(self) -> int:
        return sum(1 for status in self.status if has_failed(status))

    @property
    def answered_s(self) -> list[float]:
        """The response times of requests that did not fail: a quick refusal does not count."""
        return [took_s for _, took_s, status in self if not has_failed(status)]

    @property
    def mean_s(self) -> float:
        """The mean response time of requests that did not fail; infinite if all failed."""
        answered_s = self.answered_s
        return math.fsum(answered_s) / len(answered_s) if answered_s else math.inf


class Visit(msgspec.Struct, frozen=True):
    """The record of a group of clients: when each was present, and all requests."""

    began_at: float
    ended_at: float
    present: list[tuple[float, float]]
    requests: Requests
    # Processor seconds of the clients' process.
    processor_s: float = 0.0

    def present_at(self, moment: float) -> int:
        return sum(1 for came, went in self.present if came <= moment < went)


def drawn_s(took_s: float) -> float:
    """Limit a response time to the clients' timeout, to draw infinite ones."""
    return min(took_s, TIMEOUT_S)


def has_failed(status: int) -> bool:
    return status == NO_ANSWER or status >= 500


async def visit(crowd: Crowd) -> Visit:
    """Run a group of clients until the last one has finished."""
    processor_s = time.process_time()
    requests = Requests()
    began_at = time.monotonic()
    ends_at = None if crowd.seconds is None else began_at + crowd.seconds

    async def one(number: int) -> tuple[float, float]:
        await asyncio.sleep(number * crowd.ramp_s)
        came_at = time.monotonic()
        await _Client(crowd, number, requests, ends_at).go_through_sessions()
        return came_at, time.monotonic()

    present = await asyncio.gather(*(one(number) for number in range(crowd.clients)))
    return Visit(began_at, time.monotonic(), present, requests, time.process_time() - processor_s)


class _Client:
    def __init__(
        self, crowd: Crowd, number: int, requests: Requests, ends_at: float | None
    ) -> None:
        self._crowd = crowd
        self._port = crowd.ports[number % len(crowd.ports)]
        self._random = random.Random(crowd.seed * 1000 + number)
        self._requests = requests
        self._ends_at = ends_at

    async def go_through_sessions(self) -> None:
        done = 0
        while self._crowd.sessions is None or done < self._crowd.sessions:
            if self._is_over():
                return
            await self._go_through_one()
            done += 1

    def _is_over(self) -> bool:
        return self._ends_at is not None and time.monotonic() >= self._ends_at

    async def _go_through_one(self) -> None:
        cookies: dict[str, str] = {}
        connection: _Connection | None = None
        for operation in self._crowd.session:
            if self._is_over():
                break
            began_s = time.monotonic()
            status = NO_ANSWER
            try:
                async with asyncio.timeout(self._crowd.timeout_s):
                    if connection is None or not connection.is_open:
                        connection = await _connected(self._port)
                    request = _request(operation, self._random.randrange(BOOKS), cookies)
                    status = await connection.ask(request, cookies)
            except (OSError, TimeoutError, httptools.HttpParserError):
                if connection is not None:
                    connection.close()
                connection = None
            ended_s = time.monotonic()
            self._requests.add(ended_s, ended_s - began_s, status)
            if self._crowd.think_s > 0.0:
                await asyncio.sleep(self._crowd.think_s)
            elif status == NO_ANSWER:
                # A pause, so that clients do not flood a door that refuses connections.
                await asyncio.sleep(0.05)
        if connection is not None:
            connection.close()


async def _connected(port: int) -> _Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(_Connection, "127.0.0.1", port)
    return connection


def _request(operation: str, book: int, cookies: dict[str, str]) -> bytes:
    method = "GET" if operation == _ASKS_ONLY else "POST"
    lines = [f"{method} /{operation}?book={book} HTTP/1.1", "Host: shop"]
    if method == "POST":
        lines.append("Content-Length: 0")
    if cookies:
        lines.append("Cookie: " + "; ".join(f"{name}={value}" for name, value in cookies.items()))
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class _Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answered: asyncio.Future[int] | None = None
        self._cookies: dict[str, str] = {}

    async def ask(self, request: bytes, cookies: dict[str, str]) -> int:
        """Send a request and return the status after the whole answer has arrived.

        Cookies of the answer are added to `cookies`.
        """
        assert self._transport is not None
        self._cookies = cookies
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answered

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._fail(error or ConnectionResetError("closed before the answer was whole"))

    def _fail(self, error: Exception) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)

    # Callbacks of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"set-cookie":
            key, _, said = value.decode("latin-1").partition(";")[0].partition("=")
            self._cookies[key.strip()] = said.strip()

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.is_open = False
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(self._parser.get_status_code())
