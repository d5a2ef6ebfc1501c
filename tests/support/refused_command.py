"""What a command said that was refused."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol


class Said(NamedTuple):
    """To whom, and with which exit code."""

    code: str | int | None
    out: str
    err: str


class RefusedCommand(Protocol):
    """Runs one to its end, which is not a good one."""

    def __call__(self, *words: str | Path) -> Said:
        """With these words on its command line."""
