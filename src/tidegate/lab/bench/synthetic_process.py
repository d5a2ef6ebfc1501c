"""A process that writes a synthetic lake: what it needs of memory is not the pipeline's.

    python -m tidegate.lab.bench.synthetic_process <folder> <subjects>

Each line that it reads says of which kind there should be how many rows; it answers when there are.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import msgspec

from tidegate.lab.bench.child import answer
from tidegate.lab.bench.synthetic_lake import SyntheticLake, SyntheticOptions


class Wanted(msgspec.Struct, frozen=True):
    """How large the lake should be."""

    kind: str
    rows: int


class Grown(msgspec.Struct, frozen=True):
    """How large it is."""

    rows: int
    since: datetime
    until: datetime


def main(folder: Path, subjects: int) -> None:
    lake = SyntheticLake(folder, SyntheticOptions(subjects=subjects))
    for line in sys.stdin.buffer:
        wanted = msgspec.json.decode(line, type=Wanted)
        lake.grow_to(wanted.kind, wanted.rows)
        answer(Grown(lake.rows(wanted.kind), lake.begins(), lake.ends(wanted.kind)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
