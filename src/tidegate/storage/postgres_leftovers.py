"""Processes of PostgreSQL that work in a folder, and those of them that nobody looks after."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from pathlib import Path

from tidegate.storage.postgres_process import end_process

log = logging.getLogger(__name__)

# However long a shutdown takes, it is over by then.
GONE_S_MAX = 120.0


def end_leftovers(database: Path) -> None:
    """End every PostgreSQL process of a folder that we hold: nobody living looks after them."""
    if not database.exists():
        return
    leftovers = processes_in(database)
    postmaster = recorded_pid(database)
    if postmaster in leftovers:
        log.warning("stopping a PostgreSQL that outlived its holder", extra={"pid": postmaster})
        end_process(postmaster, partial(_gone, postmaster, database))
        leftovers = processes_in(database)
    # Backends of a killed postmaster go by themselves, but one in the middle of something may take
    # its time, and no new server starts while they use the old shared memory.
    for pid in leftovers:
        if not _gone(pid, database, 1.0):
            end_process(pid, partial(_gone, pid, database))
    # With none of them left the file is stale. PostgreSQL finds that out by itself unless the
    # number now belongs to another process of the same user, as it often does in containers.
    (database / "postmaster.pid").unlink(missing_ok=True)


def recorded_pid(database: Path) -> int:
    """Whom its file names as the postmaster; 0: nobody."""
    try:
        return int((database / "postmaster.pid").read_text().split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return 0


def processes_in(database: Path) -> set[int]:
    """The PostgreSQL processes that work in a folder: each makes it its current directory."""
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
