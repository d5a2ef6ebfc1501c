"""NATS with JetStream, flushed to disk on every write where the version can do that.

Strategy: `sync_interval: always` came with 2.10. An older server (Debian 12 has 2.9) refuses the
setting and flushes every two minutes, so its confirms promise less than everyone else's; the
server itself is asked (`-t` checks a configuration), and the note goes into the report.
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
    """A fresh server with an empty JetStream store."""
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
            # The greeting names JetStream only once its store has been recovered.
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
