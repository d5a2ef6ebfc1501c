"""What each part of our HAProxy configuration costs a request, in processor time of HAProxy.

    .venv/bin/python docs/decisions/spike_0007_haproxy.py [rounds] [part ...]

All variants run side by side before one nginx that answers at once, and are asked in turn for a
third of a second each, in another order each round, by the shop's clients: what the machine does
meanwhile hits all of them. Counted is the time that the kernel gave HAProxy's threads (schedstat,
in ns), so that neighbours disturb little. A part costs what HAProxy takes less without it; the
bound is of the paired differences, at 95 %.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev

import uvloop
from scipy import stats

from tidegate.adapters.door_settings import DoorSettings
from tidegate.adapters.haproxy.configuration import configuration
from tidegate.adapters.haproxy.program import haproxy_program
from tidegate.core.hosting import Backend
from tidegate.lab.peers.haproxy_server import plain_configuration
from tidegate.lab.peers.server import answers, free_loopback_ports, running, temporary_folder
from tidegate.lab.tapas.clients import Crowd, visit

SLICE_S = 0.3
CLIENTS = 15
SERVERS = 3
ROUNDS = 12
PIPE_BYTES = 1 << 20
QUESTION = b"GET /well HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n"
NGINX = """\
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{
{listen}
        location / {{ return 200 "Volume 7, 1000000 left"; }}
    }}
}}
"""

Change = Callable[[str], str]


def without(*patterns: str) -> Change:
    """The configuration without the lines in which one of these is found."""
    found = re.compile("|".join(patterns))

    def changed(text: str) -> str:
        kept = [line for line in text.splitlines() if not found.search(line)]
        assert len(kept) < len(text.splitlines()), patterns
        return "\n".join(kept) + "\n"

    return changed


def replaced(pattern: str, by: str) -> Change:
    def changed(text: str) -> str:
        text, count = re.subn(pattern, by, text)
        assert count, pattern
        return text

    return changed


# What is left out of ours, one at a time.
PARTS: dict[str, Change] = {
    "log": without(r"^    log ", "log-format", "set-log-level"),
    "shedding": replaced("acl beyond .*", "acl beyond always_false"),
    "usual: method": replaced(r"\{ method GET POST[^}]*\} usual", "usual"),
    "usual: target": replaced("usual_target good_host", "good_host"),
    "usual: host": replaced("usual_target good_host", "usual_target"),
    "usual: fields": replaced("good_host !unusual_field", "good_host"),
    "LoadBalanced": without("add-header LoadBalanced"),
    "Via": without("Via"),
    "X-Forwarded-Proto": without("add-header X-Forwarded-Proto"),
    "X-Forwarded-Host": without("add-header X-Forwarded-Host"),
    "X-Forwarded-For": without("forwardfor"),
    "abortonclose": without("abortonclose"),
    "L7 retry": without("retry-on", "disable-l7-retry"),
    "cookie": without("cookie"),
    "maxconn of servers": replaced(r" maxconn 1000\b", ""),
    "observe": replaced(" observe layer4 error-limit 3 on-error mark-down", ""),
    "pool bounds": replaced(r" pool-purge-delay \S+ pool-max-conn \S+", ""),
    "http-reuse always": without("http-reuse"),
}


class Variant:
    """A HAProxy that runs, and what it took for a request, slice by slice."""

    def __init__(self, port: int, pid: int, log_fd: int) -> None:
        self.port = port
        self._tasks = Path(f"/proc/{pid}/task")
        self._log_fd = log_fd
        self.ns: list[float] = []
        self.response_us: list[float] = []

    def _processor_ns(self) -> int:
        return sum(int((one / "schedstat").read_text().split()[0]) for one in self._tasks.iterdir())

    def ask(self) -> None:
        before = self._processor_ns()
        seen = uvloop.run(
            visit(Crowd(ports=[self.port], clients=CLIENTS, sessions=None, seconds=SLICE_S))
        )
        self.ns.append((self._processor_ns() - before) / len(seen.requests))
        self.response_us.append(seen.requests.mean_s * 1e6)
        assert not seen.requests.failed
        with contextlib.suppress(BlockingIOError):
            os.read(self._log_fd, PIPE_BYTES)


@contextlib.contextmanager
def _nginx() -> Iterator[list[int]]:
    ports = free_loopback_ports(SERVERS)
    listen = "\n".join(f"        listen 127.0.0.1:{port};" for port in ports)
    with temporary_folder("nginx") as folder:
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, listen=listen))
        command = ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", "stderr"]
        with running(
            command, folder=folder, is_ready=lambda: answers(ports[0], QUESTION, b"HTTP/1.1 200")
        ):
            yield ports


def _ours(server_ports: Sequence[int], folder: Path, listener_fd: int, log_fd: int) -> str:
    return configuration(
        DoorSettings(
            "shop",
            balancing="least-outstanding",
            session_secret=b"a secret of sixteen bytes",
            health_path="/well",
        ),
        [
            Backend(instance_id=number, host="127.0.0.1", port=port, concurrency=1000)
            for number, port in enumerate(server_ports, 1)
        ],
        runtime_socket=str(folder / "runtime"),
        listener_fd=listener_fd,
        log_fd=log_fd,
        token="0123456789abcdef",
        in_flight_max=10_000,
        # As at some 6 000 requests a second.
        kept=50,
    )


@contextlib.contextmanager
def _haproxy(server_ports: Sequence[int], change: Change | None) -> Iterator[Variant]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port: int = listener.getsockname()[1]
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    fcntl.fcntl(read_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with temporary_folder("haproxy") as folder:
        if change is None:
            text = plain_configuration(
                server_ports,
                bind=f"fd@{listener.fileno()}",
                runtime_socket=str(folder / "runtime"),
                sticky=True,
                ready_path="/well",
            )
        else:
            text = change(_ours(server_ports, folder, listener.fileno(), write_fd))
        (folder / "haproxy.cfg").write_text(text)
        process = subprocess.Popen(
            [haproxy_program(), "-db", "-f", str(folder / "haproxy.cfg")],
            pass_fds=(listener.fileno(), write_fd),
            stderr=subprocess.DEVNULL,
        )
        try:
            while not answers(port, QUESTION, b"HTTP/1.1 200"):
                assert process.poll() is None, text
            yield Variant(port, process.pid, read_fd)
        finally:
            process.kill()
            process.wait()
            listener.close()
            os.close(read_fd)
            os.close(write_fd)


def _difference(of: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """The mean of the paired differences, and how far the truth may be from it."""
    apart = [base_one - one for one, base_one in zip(of, base, strict=True)]
    reach = stats.t.ppf(0.975, len(apart) - 1) * stdev(apart) / len(apart) ** 0.5
    return fmean(apart), float(reach)


def main(rounds: int, chosen: Sequence[str]) -> None:
    changes: dict[str, Change | None] = {"plain": None, "ours": lambda text: text}
    changes |= {name: PARTS[name] for name in chosen or PARTS}
    with contextlib.ExitStack() as stack:
        server_ports = stack.enter_context(_nginx())
        variants = {
            name: stack.enter_context(_haproxy(server_ports, change))
            for name, change in changes.items()
        }
        for number in range(rounds + 1):
            for one in random.Random(number).sample(list(variants), len(variants)):
                variants[one].ask()
        for one in variants.values():
            # The first is no measure of anything.
            del one.ns[0], one.response_us[0]
    for name, one in variants.items():
        if name in ("plain", "ours"):
            print(
                f"{name:20} {fmean(one.ns) / 1000:6.2f} µs, response {fmean(one.response_us):.0f}"
            )
    for name, one in variants.items():
        if name != "ours":
            apart, reach = _difference(one.ns, variants["ours"].ns)
            print(f"ours less {name:20} {apart / 1000:6.2f} ± {reach / 1000:.2f} µs")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS, sys.argv[2:])
