"""nginx from the Debian package, with the static configuration of a careful operator.

It runs in the foreground with a worker for each core, as Debian configures it. All files that it
would write to system folders go to a temporary folder. Sessions stay with their server by the hash
of a cookie of the application, because open-source nginx sets no cookie of its own.
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

DEBIAN_PACKAGE = "nginx"

_CONFIGURATION = """\
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
    program = find_program(["nginx"], DEBIAN_PACKAGE)
    (port,) = free_loopback_ports(1)
    balance = f"hash $cookie_{sticky_cookie} consistent" if sticky_cookie else "least_conn"
    with temporary_folder("nginx") as folder:
        file = folder / "nginx.conf"
        file.write_text(
            _CONFIGURATION.format(
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
