"""HAProxy from the Debian package, with the static configuration of a careful operator.

It runs in the foreground on a free loopback port, with its configuration in a temporary folder and
its default number of threads. The installed service is neither used nor disturbed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate_lab.peers.servers import (
    answers,
    find_program,
    free_loopback_ports,
    running,
    temporary_folder,
)

HAPROXY_PACKAGE = "haproxy"

_HAPROXY_CONFIGURATION = """\
global
    maxconn 4096
    stats socket {runtime_socket} mode 600 level admin

defaults
    mode http
    retries 2
    option redispatch 1
    timeout http-request 10s
    timeout http-keep-alive 60s
    timeout client 60s
    timeout connect 2s
    timeout server 60s
    timeout queue 5s
    timeout check 1s

frontend shop
    bind {bind}
    default_backend shop

backend shop
    balance {balance}
    http-reuse {reuse}
    option forwardfor
    option httpchk GET {ready_path}
{cookie}{servers}"""


def plain_configuration(
    server_ports: Sequence[int],
    *,
    bind: str,
    runtime_socket: str,
    sticky: bool = False,
    balance: str = "leastconn",
    reuse: str = "always",
    ready_path: str = "/",
) -> str:
    """Return a configuration with the defaults of Tidegate's own door, without log and rules.

    The defaults are the limits, timeouts, health checks, balancing, and reuse of connections.
    HAProxy's own default of `reuse` is `safe`.
    """
    cookie = "    cookie StickyHost insert indirect nocache httponly\n" if sticky else ""
    servers = "".join(
        f"    server i{number} 127.0.0.1:{one} maxconn 1000 check inter 1s fall 2 rise 1"
        f"{f' cookie i{number}' if sticky else ''}\n"
        for number, one in enumerate(server_ports, 1)
    )
    return _HAPROXY_CONFIGURATION.format(
        bind=bind,
        runtime_socket=runtime_socket,
        balance=balance,
        reuse=reuse,
        ready_path=ready_path,
        cookie=cookie,
        servers=servers,
    )


@dataclass(frozen=True)
class HaproxyServer:
    """A running HAProxy that answers requests."""

    port: int
    process: subprocess.Popen[bytes]
    notes: Sequence[str] = ()


@contextlib.contextmanager
def haproxy_server(
    server_ports: Sequence[int],
    *,
    sticky: bool = False,
    balance: str = "leastconn",
    reuse: str = "always",
    ready_path: str = "/",
) -> Iterator[HaproxyServer]:
    """Run HAProxy in front of servers on loopback ports until the block ends."""
    program = find_program(["haproxy"], HAPROXY_PACKAGE)
    (port,) = free_loopback_ports(1)
    with temporary_folder("haproxy") as folder:
        file = folder / "haproxy.cfg"
        file.write_text(
            plain_configuration(
                server_ports,
                bind=f"127.0.0.1:{port}",
                runtime_socket=str(folder / "runtime"),
                sticky=sticky,
                balance=balance,
                reuse=reuse,
                ready_path=ready_path,
            )
        )
        question = f"GET {ready_path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n".encode()
        with running(
            # `-db` keeps HAProxy in the foreground, without a master process.
            [program, "-db", "-f", str(file)],
            folder=folder,
            is_ready=lambda: answers(port, question, b"HTTP/1.1 200"),
        ) as process:
            yield HaproxyServer(port, process)


# nginx from the Debian package, with the static configuration of a careful operator.
#
# It runs in the foreground with a worker for each core, as Debian configures it. All files that it
# would write to system folders go to a temporary folder. Sessions stay with their server by the
# hash of a cookie of the application, because open-source nginx sets no cookie of its own.


NGINX_PACKAGE = "nginx"

_NGINX_CONFIGURATION = """\
daemon off;
worker_processes auto;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{
    worker_connections 4096;
}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    upstream shop {{
        {balance};
{servers}        keepalive 256;
        keepalive_requests 1000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://shop;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }}
    }}
}}
"""


@dataclass(frozen=True)
class NginxServer:
    """A running nginx that answers requests."""

    port: int
    process: subprocess.Popen[bytes]
    notes: Sequence[str] = ()


@contextlib.contextmanager
def nginx_server(
    server_ports: Sequence[int], *, sticky_cookie: str | None = None, ready_path: str = "/"
) -> Iterator[NginxServer]:
    """Run nginx in front of servers on loopback ports until the block ends."""
    program = find_program(["nginx"], NGINX_PACKAGE)
    (port,) = free_loopback_ports(1)
    balance = f"hash $cookie_{sticky_cookie} consistent" if sticky_cookie else "least_conn"
    with temporary_folder("nginx") as folder:
        file = folder / "nginx.conf"
        file.write_text(
            _NGINX_CONFIGURATION.format(
                folder=folder,
                port=port,
                balance=balance,
                servers="".join(f"        server 127.0.0.1:{one};\n" for one in server_ports),
            )
        )
        question = f"GET {ready_path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n".encode()
        with running(
            [program, "-p", str(folder), "-c", str(file)],
            folder=folder,
            is_ready=lambda: answers(port, question, b"HTTP/1.1 200"),
        ) as process:
            yield NginxServer(port, process)


# proxy.py, the best-known reverse proxy in Python, as the peer of the embedded gateway.
#
# proxy.py is a program that is installed, configured with routes, and run. The alternatives are
# less suitable. mitmproxy is a large tool to debug traffic. Twisted's ReverseProxyResource is a
# component. Proxies on httpx or aiohttp are code that this benchmark would have to contain.
#
# It runs with one acceptor and one worker, to have one core like every other door. It uses
# one thread per client. In its other mode ("threadless", version 2.4.10) the loop that serves all
# clients ends with FileNotFoundError when a client sends a second request over one connection.


PLUGIN = "tidegate_lab.peers.proxy_py_plugin.ShopRoute"
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
