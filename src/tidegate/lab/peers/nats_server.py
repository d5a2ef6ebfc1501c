"""NATS with JetStream, which flushes every write to disk if the version can.

Version 2.10 introduced `sync_interval: always`. An older server (Debian 12 has 2.9) rejects the
setting and flushes every two minutes. Its confirmations then promise less than those of the other
systems, and a note in the report says so. `nats-server -t` tells whether the server accepts the
setting.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.lab.peers.server import (
    answers,
    find_program,
    free_loopback_ports,
    running,
    temporary_folder,
)

DEBIAN_PACKAGE = "nats-server"
NOT_FLUSHED = (
    "NATS: this version has no sync_interval, so JetStream confirms before the disk has the "
    "message (it flushes every two minutes); the figures flatter it"
)


@dataclass(frozen=True)
class NatsServer:
    """A running NATS server with JetStream on files."""

    port: int
    notes: Sequence[str] = ()


@contextlib.contextmanager
def nats_server() -> Iterator[NatsServer]:
    """Run a NATS server with an empty JetStream store until the block ends."""
    program = find_program(["nats-server"], DEBIAN_PACKAGE)
    (port,) = free_loopback_ports(1)
    with temporary_folder("nats") as folder:
        flushed = _configuration(folder, port, sync_always=True)
        notes: Sequence[str] = ()
        if not _accepts(program, flushed):
            flushed = _configuration(folder, port, sync_always=False)
            notes = (NOT_FLUSHED,)
        with running(
            [program, "-c", str(flushed)],
            folder=folder,
            # The greeting names JetStream only after its store is recovered.
            is_ready=lambda: answers(port, b"", b'"jetstream":true'),
        ):
            yield NatsServer(port=port, notes=notes)


def _configuration(folder: Path, port: int, *, sync_always: bool) -> Path:
    path = folder / "nats.conf"
    path.write_text(
        f"listen: 127.0.0.1:{port}\n"
        "jetstream {\n"
        f"  store_dir: {json.dumps(str(folder / 'jetstream'))}\n"
        + ("  sync_interval: always\n" if sync_always else "")
        + "}\n"
    )
    return path


def _accepts(program: str, configuration: Path) -> bool:
    check = subprocess.run(
        [program, "-t", "-c", str(configuration)], capture_output=True, check=False
    )
    return check.returncode == 0
