"""The files of a stage dealt to several processes: `pytest --stage quick --part 1/3`.

Strategy: to read all files takes as long as to run a good part of the quick tests, and xdist has
every process read all of them. Here each reads its own only. Files are dealt by their size, the
largest first, each to whoever has least: all processes come to the same deal by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_WRITTEN = re.compile(r"([1-9])/([1-9])")


class Part:
    """What one of them reads."""

    def __init__(self, written: str, files: Iterable[Path]) -> None:
        match = _WRITTEN.fullmatch(written)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError(f"a part is written as 1/3, not {written!r}")
        self.files = _dealt(files, int(match[2]))[int(match[1]) - 1]

    def may_hold(self, path: Path) -> bool:
        """Whether the file is in this part, or whatever is no file of tests."""
        return path in self.files or not (path.name.startswith("test_") and path.suffix == ".py")


def _dealt(files: Iterable[Path], count: int) -> list[set[Path]]:
    dealt: list[set[Path]] = [set() for _ in range(count)]
    sizes = [0] * count
    for size, file in sorted(((file.stat().st_size, file) for file in files), reverse=True):
        least = sizes.index(min(sizes))
        sizes[least] += size
        dealt[least].add(file)
    return dealt
