"""What memory is left: of a machine, and of one instance, which may be allowed less.

    free of an instance = the least of    what its computer has available
                                          what its control groups have left, from its own to the top
                                          what its own limits (ulimit -v, -d) leave it

Whole MiB throughout, so that what hardly changes does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_MEBIBYTE = 1024 * 1024
_GROUPS = "sys/fs/cgroup"
# A limit of a process, and what of its status counts against it.
_LIMITS = {"Max address space": "VmSize", "Max data size": "VmData"}


@dataclass(frozen=True)
class InstanceMemory:
    """Of one process; None: nobody says."""

    # What it may still take, and what it has.
    free_bytes: float | None
    resident_bytes: float | None


def free_memory_bytes(root: Path = Path("/")) -> float | None:
    """What a machine has left; None: nobody says."""
    return _least((_computers(root), _left_in_group(root / _GROUPS)))


def instance_memory(process_id: int, root: Path = Path("/")) -> InstanceMemory:
    """What one instance has, and may still take."""
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
    """Lines such as `VmRSS:  5130 kB`, in bytes."""
    found = {}
    for line in _lines(file):
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if unit == "kB":
            found[name] = int(number) * 1024
    return found


def _lines(file: Path) -> list[str]:
    """Of a file that may be gone with its process."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _groups(root: Path, process_id: int) -> Iterator[Path]:
    """Its control group and all that this one is in, as far as we see them."""
    own = next(
        (line[3:] for line in _lines(root / f"proc/{process_id}/cgroup") if line.startswith("0::")),
        "/",
    )
    parts = PurePosixPath(own).parts[1:]
    # What lies above what we see is spelt with dots.
    if ".." in parts:
        parts = ()
    for count in range(len(parts), -1, -1):
        yield root.joinpath(_GROUPS, *parts[:count])


def _left_in_group(folder: Path) -> int | None:
    """Page cache counts as free."""
    try:
        most = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        # None there, or "max": no bound.
        return None
    return max(most - used + int(counts.get("inactive_file", 0)), 0)


def _left_by_limits(root: Path, process_id: int, status: dict[str, int]) -> Iterator[int]:
    for line in _lines(root / f"proc/{process_id}/limits"):
        for name, counted in _LIMITS.items():
            if line.startswith(name) and counted in status:
                soft = line[len(name) :].split()[0]
                if soft.isdecimal():
                    yield max(int(soft) - status[counted], 0)
