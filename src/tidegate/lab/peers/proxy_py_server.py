"""proxy.py, the best-known reverse proxy in Python, as the peer of the embedded gateway.

proxy.py is a program that is installed, configured with routes, and run. The alternatives are
less suitable. mitmproxy is a large tool to debug traffic. Twisted's `ReverseProxyResource` is a
component. Proxies on httpx or aiohttp are code that this benchmark would have to contain.

It runs with one acceptor and one worker, to have one core like every other door. It uses
one thread per client. In its other mode ("threadless", version 2.4.10) the loop that serves all
clients ends with FileNotFoundError when a client sends a second request over one connection.
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
    """A running proxy.py that answers requests."""

    port: int
    process: subprocess.Popen[bytes]
    notes: Sequence[str] = NOTES


@contextlib.contextmanager
def proxy_py_server(
    server_ports: Sequence[int], *, ready_path: str = "/"
) -> Iterator[ProxyPyServer]:
    """Run proxy.py in front of servers on loopback ports until the block ends."""
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
            # proxy.py writes certificates and other files to its home folder.
            command,
            folder=folder,
            environment={**environment, "HOME": str(folder)},
            is_ready=lambda: answers(port, question, b"HTTP/1.1 200"),
        ) as process,
    ):
        yield ProxyPyServer(port, process)
