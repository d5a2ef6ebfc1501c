"""Tidegate, started with `tidegate up` as a user would."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.lab.peers.server import running, temporary_folder

_ADDRESS = re.compile(rb"tidegate://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True)
class TidegateServer:
    """Running nodes with an embedded PostgreSQL; `port` is the port of the first node."""

    port: int
    ports: Sequence[int] = ()
    notes: Sequence[str] = ()


@contextlib.contextmanager
def tidegate_server(
    *, nodes: int = 1, settings: Mapping[str, str] | None = None
) -> Iterator[TidegateServer]:
    """Run nodes with an empty store until the block ends.

    The keys of `settings` are names of environment variables.
    """
    with temporary_folder("tidegate") as folder:
        command = [
            *(sys.executable, "-m", "tidegate", "up"),
            *("--data", str(folder / "data"), "--port", "0", "--nodes", str(nodes)),
        ]
        output = folder / f"{Path(sys.executable).name}.out"

        def ports() -> list[int]:
            """Return the nodes' ports, which `up` prints after all nodes are ready."""
            return [int(port) for port in _ADDRESS.findall(output.read_bytes())]

        with running(
            command,
            folder=folder,
            is_ready=lambda: output.exists() and len(ports()) == nodes,
            environment=os.environ | (settings or {}),
        ):
            yield TidegateServer(port=ports()[0], ports=ports())
