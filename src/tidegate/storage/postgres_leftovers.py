"""Finds the PostgreSQL processes that work in a data folder, and stops leftover ones."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from pathlib import Path

from tidegate.storage.postgres_process import end_process

log = logging.getLogger(__name__)

# Longer than any shutdown takes.
GONE_S_MAX = 120.0


def end_leftovers(database: Path) -> None:
    """End every PostgreSQL process of a database folder that this process has locked."""
    if not database.exists():
        return
    leftovers = processes_in(database)
    postmaster = recorded_pid(database)
    if postmaster in leftovers:
        log.warning("stopping a PostgreSQL that outlived its holder", extra={"pid": postmaster})
        end_process(postmaster, partial(_gone, postmaster, database))
        leftovers = processes_in(database)
    # Backends of a killed postmaster end by themselves, but may take time to finish. No new server
    # can start while they use the old shared memory.
    for pid in leftovers:
        if not _gone(pid, database, 1.0):
            end_process(pid, partial(_gone, pid, database))
    # Without any process the file is stale. PostgreSQL detects that unless the number now belongs
    # to another process of the same user, which is common in containers.
    (database / "postmaster.pid").unlink(missing_ok=True)


def recorded_pid(database: Path) -> int:
    """Return the postmaster's process id, as recorded in the folder; 0 if there is none."""
    try:
        return int((database / "postmaster.pid").read_text().split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return 0


def processes_in(database: Path) -> set[int]:
    """Return the PostgreSQL processes whose current directory is the database folder."""
    return {
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and works_in(int(entry.name), database)
    }


def works_in(pid: int, database: Path) -> bool:
    try:
        is_postgres = Path(f"/proc/{pid}/comm").read_text().startswith("postgres")
        return is_postgres and os.readlink(f"/proc/{pid}/cwd") == str(database)  # noqa: PTH115
    except OSError:
        return False


def _gone(pid: int, database: Path, timeout_s: float | None) -> bool:
    deadline_s = time.monotonic() + (timeout_s if timeout_s is not None else GONE_S_MAX)
    while works_in(pid, database):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True
