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
import contextlib
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import httptools
import msgspec
import uvloop

from tidegate.agreements.document import Agreement, parse_agreement
from tidegate.agreements.evaluation import AgreementSample, Verdict, judge_window
from tidegate_lab.loadgen.processes import Child, answer
from tidegate_lab.papers.tapas.shops import BOOKS, InstanceCount, ShopSetting

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


class ClientPopulation(msgspec.Struct, frozen=True):
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


class RequestRecords(msgspec.Struct):
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

    def between(self, begin_s: float, end_s: float) -> RequestRecords:
        """Return the requests that ended in this period, `end_s` excluded."""
        found = RequestRecords()
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


class PopulationRecord(msgspec.Struct, frozen=True):
    """The record of a group of clients: when each was present, and all requests."""

    began_at: float
    ended_at: float
    present: list[tuple[float, float]]
    requests: RequestRecords
    # Processor seconds of the clients' process.
    processor_s: float = 0.0

    def present_at(self, moment: float) -> int:
        return sum(1 for came, went in self.present if came <= moment < went)


def drawn_s(took_s: float) -> float:
    """Limit a response time to the clients' timeout, to draw infinite ones."""
    return min(took_s, TIMEOUT_S)


def has_failed(status: int) -> bool:
    return status == NO_ANSWER or status >= 500


async def run_population(crowd: ClientPopulation) -> PopulationRecord:
    """Run a group of clients until the last one has finished."""
    processor_s = time.process_time()
    requests = RequestRecords()
    began_at = time.monotonic()
    ends_at = None if crowd.seconds is None else began_at + crowd.seconds

    async def one(number: int) -> tuple[float, float]:
        await asyncio.sleep(number * crowd.ramp_s)
        came_at = time.monotonic()
        await _Client(crowd, number, requests, ends_at).go_through_sessions()
        return came_at, time.monotonic()

    present = await asyncio.gather(*(one(number) for number in range(crowd.clients)))
    return PopulationRecord(
        began_at, time.monotonic(), present, requests, time.process_time() - processor_s
    )


class _Client:
    def __init__(
        self, crowd: ClientPopulation, number: int, requests: RequestRecords, ends_at: float | None
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


# Clients in a child process, so that they share no event loop with the measured server.


# Additional seconds to wait for the clients, because the machine may be busy.
_GRACE_S = 120.0


class PopulationProcess:
    """A running group of clients in a child process."""

    def __init__(self, child: Child, crowd: ClientPopulation, began_at: float) -> None:
        self._child = child
        self._crowd = crowd
        # The first request comes a moment later.
        self.began_at = began_at

    def until(self, seconds: float) -> None:
        """Wait until `seconds` have passed since the start, or all clients have finished."""
        left_s = self.began_at + seconds - time.monotonic()
        if left_s > 0.0:
            self._child.has_answered(left_s)

    @property
    def have_gone(self) -> bool:
        return self._child.has_answered(0.0)

    def seen(self, timeout_s: float | None = None) -> PopulationRecord:
        """Wait for the last client and return the record of all requests."""
        crowd = self._crowd
        most_s = (crowd.seconds or 600.0) + crowd.clients * crowd.ramp_s + crowd.timeout_s
        return self._child.hear(PopulationRecord, timeout_s or most_s + _GRACE_S)


@contextlib.contextmanager
def start_population(crowd: ClientPopulation) -> Iterator[PopulationProcess]:
    """Start a group of clients in a child process."""
    arguments = [msgspec.json.encode(crowd).decode()]
    with Child("tidegate_lab.papers.tapas.clients", arguments) as child:
        child.hear(bool, _GRACE_S)
        child.say(True)
        yield PopulationProcess(child, crowd, time.monotonic())


def run_population_process(crowd: ClientPopulation) -> PopulationRecord:
    """Run a group of clients in a child process and return its record."""
    with start_population(crowd) as crowd_on_its_way:
        return crowd_on_its_way.seen()


# The agreement of the experiments, judged window by window from the clients' measurements.
#
# The agreement is on the response time as users perceive it (TAPAS §4). It is therefore judged from
# the clients' measurements and not from Tidegate's own. The rule is that of the live control loops:
# the agreed percentile of the requests that ended in a window.
#
# A failed request counts as longer than any limit. So does a request that at the end of the window
# has waited for longer than the limit. A window is breached if no request ended in it although
# clients were present.


WINDOW_S = 5.0
BREACH_S = 1.0
# The issue asks for a warning at 80 % of the breach or above. One instance with ten clients has a
# p95 of 0.74 to 0.81 s, which must not be a warning.
WARNING_S = 0.9


def agreement_text(replicas_min: int, replicas_max: int) -> str:
    """Return the agreement as TOML; it warns at 90 % of the breaching point."""
    return f"""\
name = "shop"
http = "shop"
window = "{WINDOW_S:g}s"
replicas = {{ min = {replicas_min}, max = {replicas_max} }}

[metrics.response_p95]
breach = "{BREACH_S:g}s"
warning = "{WARNING_S * 1000:g}ms"
"""


AGREEMENT: Agreement = parse_agreement(agreement_text(1, 4), "the experiments' agreement")


class PromiseWindow(msgspec.Struct, frozen=True):
    """One window with its percentile and verdict from the clients' measurements."""

    # Seconds since the clients began.
    begins_s: float
    # The percentile of the requests that ended in the window; infinite if too many failed.
    p95_s: float
    verdict: str

    @property
    def is_breached(self) -> bool:
        return self.verdict == Verdict.BREACHED

    @property
    def is_warned(self) -> bool:
        return self.verdict in (Verdict.WARNED, Verdict.BREACHED)


class _WindowRequests(msgspec.Struct):
    """The requests of one window."""

    answered_s: list[float] = []
    failed: int = 0
    # The waiting times of requests that were in progress at the end of the window.
    waited_s: list[float] = []

    def judged(self, begins_s: float) -> PromiseWindow | None:
        """Return the judged window, or None if it has no requests."""
        ended = AgreementSample(
            at_s=begins_s + WINDOW_S,
            unanswered=float(self.failed),
            times={"response": [(took_s, 1) for took_s in self.answered_s]},
        )
        whole = replace(ended, in_hand=[(waited_s, 1) for waited_s in self.waited_s])
        verdict = judge_window(AGREEMENT, begins_s, [whole]).verdict
        if verdict is Verdict.NO_DATA:
            return None
        # The percentile is of ended requests only: the times of waiting ones are not known yet.
        (finding,) = judge_window(AGREEMENT, begins_s, [ended]).findings
        return PromiseWindow(
            begins_s, math.inf if finding.value is None else finding.value, str(verdict)
        )


def windows_of(visit: PopulationRecord) -> list[PromiseWindow]:
    """Return the consecutive whole windows in which clients were present."""
    found = []
    for number, one in enumerate(_seen(visit)):
        begins_s = number * WINDOW_S
        window = one.judged(begins_s)
        if window is None and _some_present(visit, begins_s, begins_s + WINDOW_S):
            window = PromiseWindow(begins_s, math.inf, str(Verdict.BREACHED))
        if window is not None:
            found.append(window)
    return found


def _seen(visit: PopulationRecord) -> list[_WindowRequests]:
    """Return the requests of each whole window."""
    seen = [_WindowRequests() for _ in range(int((visit.ended_at - visit.began_at) / WINDOW_S))]
    for ended_at, took_s, status in visit.requests:
        ended_s = ended_at - visit.began_at
        asked_s = max(ended_s - took_s, 0.0)
        last = int(ended_s / WINDOW_S)
        for number in range(int(asked_s / WINDOW_S), min(last, len(seen))):
            seen[number].waited_s.append((number + 1) * WINDOW_S - asked_s)
        if last >= len(seen):
            continue
        if has_failed(status):
            seen[last].failed += 1
        else:
            seen[last].answered_s.append(took_s)
    return seen


def _some_present(visit: PopulationRecord, begins_s: float, ends_s: float) -> bool:
    return any(
        came - visit.began_at < ends_s and went - visit.began_at > begins_s
        for came, went in visit.present
    )


def breached_s(windows: Sequence[PromiseWindow]) -> float:
    """Return the seconds of breached windows, also of those without an earlier warning."""
    return WINDOW_S * sum(1 for one in windows if one.is_breached)


def warned_s(windows: Sequence[PromiseWindow]) -> float:
    """Return the seconds of windows with a warning or a breach."""
    return WINDOW_S * sum(1 for one in windows if one.is_warned)


# The instance-seconds of an oracle that knows the number of clients and starts instances at once.
#
#     needed(t) = ceil(clients(t) · service_s / (concurrency · breach_s)), within the agreed bounds
#
# Clients that never pause always have a request in progress, and n instances answer
# n · concurrency / service_s requests per second. So this is the smallest number of instances whose
# mean response time is at most the breaching point. An oracle that keeps the 95th percentile would
# need at least as many.


_STEP_S = 0.1


def needed(clients: int, shop: ShopSetting, breach_s: float, low: int, high: int) -> int:
    """Return the oracle's number of instances for a number of clients."""
    asked = math.ceil(clients * shop.seconds_per_operation / breach_s - 1e-9)
    return min(max(asked, low), high)


def oracle_seconds(
    visit: PopulationRecord, shop: ShopSetting, breach_s: float, low: int, high: int
) -> float:
    """Return the oracle's instance-seconds from the first client to the last."""
    steps = int((visit.ended_at - visit.began_at) / _STEP_S)
    return sum(
        _STEP_S
        * needed(visit.present_at(visit.began_at + step * _STEP_S), shop, breach_s, low, high)
        for step in range(steps)
    )


def paid_seconds(crews: list[InstanceCount], begin_s: float, end_s: float) -> float:
    """Return the paid instance-seconds of a period; each count holds until the next one."""
    total_s = 0.0
    for one, following in zip(crews, [*crews[1:], None], strict=True):
        until = end_s if following is None else min(following.at, end_s)
        total_s += max(until - max(one.at, begin_s), 0.0) * one.paid
    return total_s


if __name__ == "__main__":
    order = msgspec.json.decode(sys.argv[1], type=ClientPopulation)
    answer(True)
    if not sys.stdin.readline():
        raise SystemExit("the visit was called off")
    answer(uvloop.run(run_population(order)))
