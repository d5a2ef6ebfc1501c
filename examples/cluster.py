"""Tidegate for the time of an example: processes on free ports in a temporary folder.

    with temporary_folder() as folder, running_cluster(folder, code) as url: …

Whatever was started is ended, and the folder deleted, when the block is left: by its end, by an
error, by Ctrl-C or by SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

END_S_MAX = 60.0


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="tidegate-example-"))
    # As root, PostgreSQL has an account of its own, which must get there.
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(folder: Path, code: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A `tidegate …` that stays, in the folder of its code; what it logs is shown if it fails."""
    log = folder / f"{arguments[0]}.log"
    settings = {
        # Free ports: an example is nobody's neighbour.
        "TIDEGATE_NODE__PORT": "0",
        "TIDEGATE_METRICS__PORT": "0",
        # Nobody looks for so short a time.
        "TIDEGATE_CONSOLE__ENABLED": "false",
        "TIDEGATE_STORE__DATA": str(folder / "data"),
    }
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", *arguments],
            stdout=subprocess.PIPE,
            stderr=sink,
            cwd=code,
            env=os.environ | settings,
            text=True,
            # Ctrl-C is for us; we tell it.
            start_new_session=True,
        )
    try:
        yield process
    except BaseException:
        if process.poll() not in (None, 0):
            print(log.read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        process.terminate()
        try:
            process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def first_line(process: subprocess.Popen[str]) -> str:
    """What it says when it is there: its address."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit("it ended before it was there")
    return line


@contextlib.contextmanager
def running_cluster(folder: Path, code: Path, *options: str) -> Iterator[str]:
    """`tidegate up`: an embedded PostgreSQL and a node. Gives the address of the node."""
    with running(folder, code, "up", *options) as process:
        address = first_line(process)
        # Clients and workers of ours find it there.
        os.environ["TIDEGATE_URL"] = address
        yield address
