"""Data folders in which a database lies already: initdb takes longer than the tests that need one.

The first call of a process makes a database, and every call returns a copy of it. PostgreSQL is
stopped meanwhile, so a copy is as whole as what it was made of.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from tidegate.storage.embedded import EmbeddedPostgres

# A killed process loses nothing that the kernel has, so no test needs the disk.
UNSYNCED = {"fsync": "off", "shared_buffers": "16MB"}


# In memory where there is room: the files of a database are many, and live for a second.
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 << 30


def quick_folder(purpose: str) -> Path:
    """A new folder for databases; not pytest's own: PostgreSQL's account must get there."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    return Path(tempfile.mkdtemp(prefix=f"tidegate-{purpose}-", dir=_MEMORY if has_room else None))


def copy_of_database(to: Path) -> Path:
    """Make a data folder of `to`, which does not exist yet."""
    # As root PostgreSQL has an account of its own, which owns the files.
    subprocess.run(["cp", "-a", "--reflink=auto", _made(), to], check=True)
    return to


@functools.cache
def _made() -> Path:
    folder = quick_folder("made")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with EmbeddedPostgres(folder / "data", settings=UNSYNCED):
        pass
    return folder / "data"
