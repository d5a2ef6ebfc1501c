"""Tidegate itself, started by its own command line as a user would."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.lab.peers.server import running, temporary_folder

_ADDRESS = re.compile(rb"tidegate://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True)
class TidegateServer:
    """A running node on an embedded PostgreSQL."""

    port: int
    notes: Sequence[str] = ()


@contextlib.contextmanager
def tidegate_server() -> Iterator[TidegateServer]:
    """A fresh node with an empty store."""
    with temporary_folder("tidegate") as folder:
        command = [
            *(sys.executable, "-m", "tidegate", "up"),
            *("--data", str(folder / "data"), "--port", "0"),
        ]
        output = folder / f"{Path(sys.executable).name}.out"
        # It prints its address once it is ready, and not before.
        with running(
            command,
            folder=folder,
            is_ready=lambda: output.exists() and _ADDRESS.search(output.read_bytes()) is not None,
        ):
            address = _ADDRESS.search(output.read_bytes())
            assert address is not None
            yield TidegateServer(port=int(address.group(1)))
