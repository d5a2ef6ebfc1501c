"""HAProxy from the Debian package, with the static configuration of a careful operator.

It runs in the foreground on a free loopback port, with its configuration in a temporary folder and
its default number of threads. The installed service is neither used nor disturbed.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.lab.peers.server import (
    answers,
    find_program,
    free_loopback_ports,
    running,
    temporary_folder,
)

DEBIAN_PACKAGE = "haproxy"

_CONFIGURATION = """\
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
    return _CONFIGURATION.format(
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
    program = find_program(["haproxy"], DEBIAN_PACKAGE)
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
