"""Which tests run together: `pytest --stage …`, by what they need.

    quick   starts no process and has no mark: `make check`
    crowd   all but those below, several at a time
    kills   marked `faults`: needs room beside it
    paced   marked `paced`: measures rates at which a core rests: two at a time
    alone   marked `alone`: measures, and has the machine to itself

Files that cannot hold a test of the stage are not even imported: all of them take many seconds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from process_starters import ProcessStarters

# Stages by mark; who has several belongs to the last.
MARKS = {"kills": "faults", "paced": "paced", "alone": "alone"}
NOT_QUICK = {"peers", "slow", "spark"}
# None of whose tests is.
_WHOLLY_MARKED = re.compile(
    rf"^pytestmark = .*\bmark\.({'|'.join(sorted({*MARKS.values(), *NOT_QUICK}))})\b", re.MULTILINE
)
# Who is the first to import something pays for all.
QUICK_CPU_S_MAX = 2.0
STAGES = ("quick", "crowd", *MARKS)


def stage_of(item: pytest.Item) -> str:
    """Where it belongs, of those that together are everything."""
    marked = [stage for stage, mark in MARKS.items() if item.get_closest_marker(mark) is not None]
    return marked[-1] if marked else "crowd"


class Stage:
    """A part of the tests."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._starters = ProcessStarters()

    def may_be_in(self, path: Path) -> bool:
        """Whether the file, or one in the folder, may hold a test of this stage, by its text."""
        if path.is_dir():
            return any(map(self.may_be_in, path.rglob("test_*.py")))
        if not (path.name.startswith("test_") and path.suffix == ".py"):
            return True
        text = path.read_text()
        if self.name == "quick":
            # Importing it takes as long as some hundred tests.
            is_dear = "pyspark" in text or "tidegate.pipeline" in text
            return not is_dear and _WHOLLY_MARKED.search(text) is None
        return self.name not in MARKS or f"mark.{MARKS[self.name]}" in text

    def complaint(self, cpu_s: float) -> str:
        """About a test that took so long, if there is any."""
        if self.name != "quick" or cpu_s < QUICK_CPU_S_MAX:
            return ""
        return f"took {cpu_s:.1f} s of CPU: mark it slow, for `make check` to stay below a minute"

    def includes(self, item: pytest.Item) -> bool:
        if self.name != "quick":
            return stage_of(item) == self.name
        return (
            stage_of(item) == "crowd"
            and not any(item.get_closest_marker(mark) for mark in NOT_QUICK)
            and not any(map(self._starters.includes, _code_of(item)))
        )


def _code_of(item: Any) -> list[Any]:
    """Its own function, and those of its fixtures."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return [item.function, *(fixture.func for defined in fixtures for fixture in defined)]
