"""Redis with an append-only file that it flushes to disk before any answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.lab.peers.server import (
    answers,
    find_program,
    free_loopback_ports,
    running,
    temporary_folder,
)

DEBIAN_PACKAGE = "redis-server"


@dataclass(frozen=True)
class RedisServer:
    """A running Redis that answers a write after the write is on disk."""

    port: int
    notes: Sequence[str] = ()


@contextlib.contextmanager
def redis_server() -> Iterator[RedisServer]:
    """Run a durable Redis without snapshots until the block ends."""
    program = find_program(["redis-server"], DEBIAN_PACKAGE)
    (port,) = free_loopback_ports(1)
    with temporary_folder("redis") as folder:
        command = [
            *(program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            *("--daemonize", "no"),
        ]
        with running(command, folder=folder, is_ready=lambda: answers(port, b"PING\r\n", b"+PONG")):
            yield RedisServer(port=port)
