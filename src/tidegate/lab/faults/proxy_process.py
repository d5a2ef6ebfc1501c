"""The misbehaving TCP proxy as a process of its own, steered over its input.

A proxy that shares a loop with what it stands in front of delays it by what that loop is busy
with, too. `proxy_at` starts one and gives its verbs.
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
    """What is to change; None: stays."""

    delay_s: float | None = None
    mode: Mode | None = None
    cut: bool = False


class ProxyProcess:
    """A proxy in a child process; each call returns when the proxy does what it says."""

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
    """A proxy in front of this URL until the block ends."""
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
