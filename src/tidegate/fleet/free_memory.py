"""Free memory of a machine, and of one instance, which may be allowed less.

    free of an instance = the least of    the available memory of its computer
                                          what each of its control groups has left, up to the root
                                          what its own limits (ulimit -v, -d) leave

All values are rounded down to whole MiB, so that small changes do not show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_MEBIBYTE = 1024 * 1024
_GROUPS = "sys/fs/cgroup"
# A limit of a process, and the field of its status that counts against it.
_LIMITS = {"Max address space": "VmSize", "Max data size": "VmData"}


@dataclass(frozen=True)
class InstanceMemory:
    """Memory of one process; None if it cannot be read."""

    # What it may still allocate, and what it uses.
    free_bytes: float | None
    resident_bytes: float | None


def free_memory_bytes(root: Path = Path("/")) -> float | None:
    """Return the free memory of this machine; None if it cannot be read."""
    return _least((_computers(root), _left_in_group(root / _GROUPS)))


def instance_memory(process_id: int, root: Path = Path("/")) -> InstanceMemory:
    """Return the memory that a process uses and may still allocate."""
    status = _status(root, process_id)
    free = _least(
        (
            _computers(root),
            *(_left_in_group(group) for group in _groups(root, process_id)),
            *_left_by_limits(root, process_id, status),
        )
    )
    resident = status.get("VmRSS")
    return InstanceMemory(free, None if resident is None else _whole(resident))


def _least(known: Iterable[int | None]) -> float | None:
    return min((_whole(one) for one in known if one is not None), default=None)


def _whole(count: int) -> float:
    return float(count // _MEBIBYTE * _MEBIBYTE)


def _computers(root: Path) -> int | None:
    return _kilobytes(root / "proc/meminfo").get("MemAvailable")


def _status(root: Path, process_id: int) -> dict[str, int]:
    return _kilobytes(root / f"proc/{process_id}/status")


def _kilobytes(file: Path) -> dict[str, int]:
    """Parse lines such as `VmRSS:  5130 kB` into bytes."""
    found = {}
    for line in _lines(file):
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if unit == "kB":
            found[name] = int(number) * 1024
    return found


def _lines(file: Path) -> list[str]:
    """Return the lines of a file; empty if it is gone with its process."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _groups(root: Path, process_id: int) -> Iterator[Path]:
    """Yield the control group of a process and its ancestors, as far as they are visible."""
    own = next(
        (line[3:] for line in _lines(root / f"proc/{process_id}/cgroup") if line.startswith("0::")),
        "/",
    )
    parts = PurePosixPath(own).parts[1:]
    # A group above the visible root is written with dots.
    if ".." in parts:
        parts = ()
    for count in range(len(parts), -1, -1):
        yield root.joinpath(_GROUPS, *parts[:count])


def _left_in_group(folder: Path) -> int | None:
    """Return what a control group has left, with its page cache; None without a limit."""
    try:
        most = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        # The file is missing, or contains "max".
        return None
    return max(most - used + int(counts.get("inactive_file", 0)), 0)


def _left_by_limits(root: Path, process_id: int, status: dict[str, int]) -> Iterator[int]:
    for line in _lines(root / f"proc/{process_id}/limits"):
        for name, counted in _LIMITS.items():
            if line.startswith(name) and counted in status:
                soft = line[len(name) :].split()[0]
                if soft.isdecimal():
                    yield max(int(soft) - status[counted], 0)
