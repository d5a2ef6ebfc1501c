"""Tidegate itself, started by its own command line as a user would."""

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
    """Running nodes on an embedded PostgreSQL; `port` is the first one's."""

    port: int
    ports: Sequence[int] = ()
    notes: Sequence[str] = ()


@contextlib.contextmanager
def tidegate_server(
    *, nodes: int = 1, settings: Mapping[str, str] | None = None
) -> Iterator[TidegateServer]:
    """Fresh nodes with an empty store; settings by the names the environment gives them."""
    with temporary_folder("tidegate") as folder:
        command = [
            *(sys.executable, "-m", "tidegate", "up"),
            *("--data", str(folder / "data"), "--port", "0", "--nodes", str(nodes)),
        ]
        output = folder / f"{Path(sys.executable).name}.out"

        def ports() -> list[int]:
            """Addresses are printed once all nodes are ready, and not before."""
            return [int(port) for port in _ADDRESS.findall(output.read_bytes())]

        with running(
            command,
            folder=folder,
            is_ready=lambda: output.exists() and len(ports()) == nodes,
            environment=os.environ | (settings or {}),
        ):
            yield TidegateServer(port=ports()[0], ports=ports())
