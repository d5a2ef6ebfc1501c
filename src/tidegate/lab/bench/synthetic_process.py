"""A child process that writes a synthetic lake, so that its memory does not count as Spark's.

    python -m tidegate.lab.bench.synthetic_process <folder> <subjects>

Each input line is a `LakeSizeRequest` with a kind and a number of rows. The process answers with a
`LakeSize` when the lake has them.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import msgspec

from tidegate.lab.bench.child import answer
from tidegate.lab.bench.synthetic_lake import SyntheticLake, SyntheticOptions


class Wanted(msgspec.Struct, frozen=True):
    """The requested size of the lake."""

    kind: str
    rows: int


class Grown(msgspec.Struct, frozen=True):
    """The actual size of the lake, and the time range of its rows."""

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
