"""proxy.py: the peer of the embedded gateway, the best known reverse proxy written in Python.

Weighed against: mitmproxy, a debugger of traffic and as large; Twisted's `ReverseProxyResource`, a
part to build one from; proxies on httpx or aiohttp, each of which is thirty lines that somebody has
to write. proxy.py is a program: it is installed, told its routes, and run.

Strategy: one acceptor and one worker, so that it has a core as every other door that is measured.
Threads, one for each client: in its other mode (2.4.10, "threadless") the loop that serves all
clients ends with FileNotFoundError once a client asks twice over one connection.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.lab.peers.server import answers, free_loopback_ports, running, temporary_folder

PLUGIN = "tidegate.lab.peers.proxy_py_plugin.ShopRoute"
SERVER_PORTS = "TIDEGATE_LAB_SERVER_PORTS"
NOTES = (
    "proxy.py draws a server for each request, keeps no sessions, and connects to it anew for each "
    "request; it runs in its threaded mode, since its other one does not survive clients that keep "
    "their connections.",
)


@dataclass(frozen=True)
class ProxyPyServer:
    """One that answers, and its process."""

    port: int
    process: subprocess.Popen[bytes]
    notes: Sequence[str] = NOTES


@contextlib.contextmanager
def proxy_py_server(
    server_ports: Sequence[int], *, ready_path: str = "/"
) -> Iterator[ProxyPyServer]:
    """Before these servers on loopback ports, until the block ends."""
    (port,) = free_loopback_ports(1)
    command = [sys.executable, "-m", "proxy", "--hostname", "127.0.0.1", "--port", str(port)]
    command += ["--num-acceptors", "1", "--num-workers", "1", "--threaded"]
    command += ["--enable-reverse-proxy", "--disable-http-proxy", "--plugins", PLUGIN]
    command += ["--log-level", "ERROR"]
    environment = {**os.environ, SERVER_PORTS: ",".join(map(str, server_ports))}
    question = f"GET {ready_path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n".encode()
    with (
        temporary_folder("proxy-py") as folder,
        running(
            # It keeps certificates and the like in its home.
            command,
            folder=folder,
            environment={**environment, "HOME": str(folder)},
            is_ready=lambda: answers(port, question, b"HTTP/1.1 200"),
        ) as process,
    ):
        yield ProxyPyServer(port, process)
