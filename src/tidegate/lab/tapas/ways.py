"""The kinds of doors between clients and instances: none, Tidegate's, and those of peers.

Every door is a process of its own with its default number of threads. It is started for each
measurement, so that no other door runs meanwhile. As in the report, sessions stay with their
instance if the door supports it. Without a door the client keeps its instance; doors use a cookie
of their own, and nginx the hash of the shop's cookie for the cart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec
import psutil

from tidegate.lab.peers.haproxy_server import haproxy_server
from tidegate.lab.peers.nginx_server import nginx_server
from tidegate.lab.peers.proxy_py_server import proxy_py_server
from tidegate.lab.peers.server import ServerFailed
from tidegate.lab.tapas.bookshop import CART, WELL_PATH
from tidegate.lab.tapas.gateway_process import GatewayOrder, gateway_process
from tidegate.lab.tapas.haproxy_door_process import haproxy_door_process

DIRECT = "direct"
GATEWAY = "gateway"
HAPROXY = "HAProxy"
HAPROXY_DEFAULT = "HAProxy, its reuse"
HAPROXY_OURS = "HAProxy, ours"
NGINX = "nginx"
PYTHON_PROXY = "proxy.py"


class Entrance(msgspec.Struct, frozen=True):
    """The ports to which clients connect, and the processes of the door."""

    ports: Sequence[int]
    pids: Sequence[int] = ()

    def processor_s(self) -> float:
        """Return processor seconds of the door's processes and their children so far.

        `ServerFailed` means that a process of the door has died.
        """
        used_s = 0.0
        for pid in self.pids:
            try:
                process = psutil.Process(pid)
            except psutil.NoSuchProcess:
                raise ServerFailed(f"the door (process {pid}) has died meanwhile") from None
            for one in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = one.cpu_times()
                    used_s += times.user + times.system
        return used_s


Way = Callable[[Sequence[int]], contextlib.AbstractContextManager[Entrance]]


@contextlib.contextmanager
def _direct(server_ports: Sequence[int]) -> Iterator[Entrance]:
    yield Entrance(server_ports)


@contextlib.contextmanager
def _gateway(server_ports: Sequence[int]) -> Iterator[Entrance]:
    with gateway_process(GatewayOrder(server_ports, sticky=True)) as gateway:
        yield Entrance([gateway.port], [gateway.pid])


@contextlib.contextmanager
def _haproxy(server_ports: Sequence[int]) -> Iterator[Entrance]:
    with haproxy_server(server_ports, sticky=True, ready_path=WELL_PATH) as server:
        yield Entrance([server.port], [server.process.pid])


@contextlib.contextmanager
def _haproxy_default(server_ports: Sequence[int]) -> Iterator[Entrance]:
    # HAProxy's default: each session opens a connection to its instance.
    with haproxy_server(server_ports, sticky=True, reuse="safe", ready_path=WELL_PATH) as server:
        yield Entrance([server.port], [server.process.pid])


@contextlib.contextmanager
def _haproxy_ours(server_ports: Sequence[int]) -> Iterator[Entrance]:
    with haproxy_door_process(server_ports) as door:
        yield Entrance([door.port], [door.pid])


@contextlib.contextmanager
def _nginx(server_ports: Sequence[int]) -> Iterator[Entrance]:
    with nginx_server(server_ports, sticky_cookie=CART, ready_path=WELL_PATH) as server:
        yield Entrance([server.port], [server.process.pid])


@contextlib.contextmanager
def _python_proxy(server_ports: Sequence[int]) -> Iterator[Entrance]:
    with proxy_py_server(server_ports, ready_path=WELL_PATH) as server:
        yield Entrance([server.port], [server.process.pid])


WAYS: dict[str, Way] = {
    DIRECT: _direct,
    GATEWAY: _gateway,
    HAPROXY: _haproxy,
    HAPROXY_DEFAULT: _haproxy_default,
    HAPROXY_OURS: _haproxy_ours,
    NGINX: _nginx,
    PYTHON_PROXY: _python_proxy,
}
