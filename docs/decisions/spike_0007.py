"""The spike behind decision 0007: what a request costs, direct and through the gateway.

    .venv/bin/python docs/decisions/spike_0007.py [parsers|cost|flood]

All of them, or one:

    parsers  one request of nine fields, and what of the tests' corpus each lets through
    cost     two small servers, a gateway before them and a client, each a process of its own:
             requests per second, latency, and the gateway's processor time per request
    flood    a healthy client beside 5 000 more connections, of which a thousand are in the middle
             of a head that never ends: its p99 against the calm one, in turns, and what a
             connection holds of the gateway's memory

Medians of several turns are printed last; `docs/gateway.md` quotes them with this command.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import h11
import httptools
import uvloop

from tidegate.gateway import Gateway, ServerAddress
from tidegate.gateway.refusal import Refusal
from tidegate.gateway.request_reader import RequestReader

REQUEST = (
    b"GET /shop/choose?book=7 HTTP/1.1\r\nHost: shop.example\r\n"
    b"User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: text/html,application/xhtml+xml\r\n"
    b"Accept-Language: en\r\nAccept-Encoding: gzip, deflate\r\nCookie: basket=7\r\n"
    b"Cache-Control: no-cache\r\nConnection: keep-alive\r\nX-Request-Id: 1234567890\r\n\r\n"
)
BODY = b"x" * 1000
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nContent-Type: text/html\r\n\r\n" + BODY
REQUESTS = 8000
TURNS = 3
# Connections that ask for nothing; the first thousand never finish their head.
FLOOD = 5000
FLOOD_IN_HEAD = 1000


class Fields:
    """The least that httptools can be asked to do."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        pass

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))


def with_httptools(data: bytes) -> bool:
    try:
        httptools.HttpRequestParser(Fields()).feed_data(data)
    except httptools.HttpParserUpgrade:
        return True
    except httptools.HttpParserError:
        return False
    return True


def with_h11(data: bytes) -> bool:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        while connection.next_event() not in (h11.NEED_DATA, h11.PAUSED):
            if connection.their_state in (h11.DONE, h11.MUST_CLOSE):
                return True
    except h11.RemoteProtocolError:
        return False
    return True


def with_ours(data: bytes) -> bool:
    reader = RequestReader(header_bytes_max=32 * 1024, body_bytes_max=None)
    reader.receive(data)
    return not any(isinstance(event, Refusal) for event in reader.events)


def parsers() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "gateway"))
    from corpus import BAD_BODIES, BAD_HEADS

    # A connection has one reader for all its requests; h11 wants an answer in between.
    reader = RequestReader(header_bytes_max=32 * 1024, body_bytes_max=None)

    def again(data: bytes) -> bool:
        reader.receive(data)
        reader.events.clear()
        return True

    for parse, timed in (
        (with_httptools, with_httptools),
        (with_h11, with_h11),
        (with_ours, again),
    ):
        best = min(_seconds(timed) for _ in range(5))
        passed = [name for name, data in (BAD_HEADS | BAD_BODIES).items() if parse(data)]
        total = len(BAD_HEADS) + len(BAD_BODIES)
        print(f"{parse.__name__:15} {best * 1e6:5.1f} µs, lets {len(passed)} of {total} through")


def _seconds(parse: Callable[[bytes], bool]) -> float:
    began = time.perf_counter()
    for _ in range(2000):
        assert parse(REQUEST)
    return (time.perf_counter() - began) / 2000


class Server(asyncio.Protocol):
    """Answers whatever ends in an empty line."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER * data.count(b"\r\n\r\n"))


class Load:
    """What the clients of one run share."""

    def __init__(self, connections: int) -> None:
        self.left = REQUESTS
        self.open = connections
        self.times: list[float] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Client(asyncio.Protocol):
    """One request after the other."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._data = b""
        self._sent_at = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        if not self._load.left:
            self._transport.close()
            return
        self._load.left -= 1
        self._sent_at = time.perf_counter()
        self._transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._data.endswith(BODY):
            assert self._data.startswith(b"HTTP/1.1 200")
            self._data = b""
            self._load.times.append(time.perf_counter() - self._sent_at)
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self._load.open -= 1
        if not self._load.open:
            self._load.over.set_result(None)


class Figures(NamedTuple):
    """What the clients of one run saw."""

    per_s: float
    p50_us: float
    p99_us: float

    def __str__(self) -> str:
        return f"{self.per_s:6.0f}/s, p50 {self.p50_us:5.0f} µs, p99 {self.p99_us:6.0f} µs"


async def run(port: int, connections: int) -> Figures:
    load = Load(connections)
    began = time.perf_counter()
    for _ in range(connections):
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Client(load), "127.0.0.1", port)
    await load.over
    per_s = REQUESTS / (time.perf_counter() - began)
    load.times.sort()
    p50_us, p99_us = (load.times[int(REQUESTS * part)] * 1e6 for part in (0.5, 0.99))
    return Figures(per_s, p50_us, p99_us)


async def serve(*ports: str) -> None:
    """A server, or a gateway if there are ports of servers."""
    loop = asyncio.get_running_loop()
    if ports:
        gateway = Gateway([ServerAddress(port, "127.0.0.1", int(port)) for port in ports])
        await gateway.start()
        print(gateway.port, flush=True)
    else:
        listener = await loop.create_server(Server, "127.0.0.1", 0)
        print(listener.sockets[0].getsockname()[1], flush=True)
    await loop.create_future()


def started(*ports: str) -> tuple[subprocess.Popen[bytes], str]:
    command = [sys.executable, __file__, "serve", *ports]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, process.stdout.readline().decode().strip()


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


@contextmanager
def gateway_before_servers() -> Iterator[tuple[int, int, int]]:
    """The gateway's pid and port, and the port of one of its servers."""
    processes = [started(), started()]
    direct = processes[0][1]
    processes.append(started(*(port for _, port in processes)))
    gateway, through = processes[2]
    try:
        yield gateway.pid, int(through), int(direct)
    finally:
        for process, _ in processes:
            process.kill()
            process.wait()


def cost() -> None:
    with gateway_before_servers() as (pid, through, direct):
        for connections in (1, 32):
            plain, fronted, costs_us = [], [], []
            for _ in range(TURNS):
                plain.append(uvloop.run(run(direct, connections)))
                print(connections, "direct", plain[-1])
                before_s = processor_s(pid)
                fronted.append(uvloop.run(run(through, connections)))
                costs_us.append((processor_s(pid) - before_s) / REQUESTS * 1e6)
                print(connections, "gateway", fronted[-1], f"{costs_us[-1]:.0f} µs of processor")
            print(
                f"{connections} connections, medians of {TURNS}: "
                f"{median(one.per_s for one in fronted):.0f} requests/s, "
                f"{median(costs_us):.0f} µs of processor a request, "
                f"p50 {median(one.p50_us for one in plain):.0f} µs direct and "
                f"{median(one.p50_us for one in fronted):.0f} µs through the gateway"
            )


async def _crowd(port: int) -> list[asyncio.StreamWriter]:
    """Connections that cost and bring nothing: idle behind a request, or within a head."""
    writers = []
    for number in range(FLOOD):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        if number < FLOOD_IN_HEAD:
            writer.write(b"GET / HTTP/1.1\r\nHost: shop.example\r\nX-Never-Ends: ")
        else:
            writer.write(REQUEST)
            await reader.readuntil(BODY)
    return writers


async def _flooded(pid: int, port: int) -> tuple[Figures, Figures, float, int]:
    """A calm run, one in the crowd, KiB for each of the crowd, and how many were left of it."""
    calm = await run(port, 32)
    before_kib = resident_kib(pid)
    writers = await _crowd(port)
    each_kib = (resident_kib(pid) - before_kib) / FLOOD
    flooded = await run(port, 32)
    left = sum(not writer.transport.is_closing() for writer in writers)
    for writer in writers:
        writer.transport.abort()
    return calm, flooded, each_kib, left


def flood() -> None:
    ratios, memory_kib = [], []
    for _ in range(TURNS):
        # A gateway of its own each time: memory that was given back is not asked for again.
        with gateway_before_servers() as (pid, through, _direct):
            calm, flooded, each_kib, left = uvloop.run(_flooded(pid, through))
        ratios.append(flooded.p99_us / calm.p99_us)
        memory_kib.append(each_kib)
        print("calm ", calm)
        print("flood", flooded, f"{each_kib:.1f} KiB each, {left} of {FLOOD} left at the end")
    print(
        f"{FLOOD} connections, medians of {TURNS}: p99 {median(ratios):.1f} times the calm one, "
        f"{median(memory_kib):.1f} KiB each"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(*sys.argv[2:]))
    else:
        parts = {"parsers": parsers, "cost": cost, "flood": flood}
        for name in sys.argv[1:] or parts:
            parts[name]()
