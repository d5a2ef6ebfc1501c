"""The fault-injecting TCP proxy as a child process, controlled over its standard input.

A proxy in the event loop of the client or the server would add the time for which that loop is
busy to the delay. `proxy_at` therefore starts the proxy in a process of its own. The parent writes
one `ProxyCommand` a line and reads one answer for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from tidegate.lab.bench.child import Child, answer
from tidegate.lab.faults.proxy import Mode, TcpProxy

ANSWER_TIMEOUT_S = 20.0


class Order(msgspec.Struct, frozen=True):
    """A change of the proxy; `None` leaves a value as it is."""

    delay_s: float | None = None
    mode: Mode | None = None
    cut: bool = False


class ProxyProcess:
    """A proxy in a child process; each call returns after the proxy has applied the change."""

    def __init__(self, child: Child, url: str) -> None:
        self._child = child
        self.url = url

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def set_delay(self, delay_s: float) -> None:
        self._order(Order(delay_s=delay_s))

    def set_mode(self, mode: Mode) -> None:
        self._order(Order(mode=mode))

    def cut(self) -> None:
        self._order(Order(cut=True))

    def _order(self, order: Order) -> None:
        self._child.say(order)
        self._child.hear(bool, ANSWER_TIMEOUT_S)


@contextlib.contextmanager
def proxy_at(target: str, delay_s: float = 0.0) -> Iterator[ProxyProcess]:
    """Run a proxy in front of `target` in a child process until the block ends."""
    with Child("tidegate.lab.faults.proxy_process", [target, str(delay_s)]) as child:
        yield ProxyProcess(child, child.hear(str, ANSWER_TIMEOUT_S))


async def _serve(target: str, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with TcpProxy(target, delay_s) as proxy:
        answer(proxy.url)
        while line := await orders.readline():
            order = msgspec.json.decode(line, type=Order)
            if order.delay_s is not None:
                proxy.set_delay(order.delay_s)
            if order.mode is not None:
                proxy.set_mode(order.mode)
            if order.cut:
                proxy.cut()
            answer(True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2])))
