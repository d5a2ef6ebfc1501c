"""A second look at what failed: `python tests/second_look.py`, after the stages of `make test`.

Strategy: thousands of tests on real servers share two cores, and now and then one of them waits
for a neighbour longer than it has patience. So what failed runs once more, one by one, on a machine
that is idle. What fails again has failed; what passes is named as flaky, which is a bug to be
mended, and not a reason to doubt the change at hand.

Some have no second look: who says that messages were lost, doubled or out of order (it is just what
shows rarely that matters there), what cannot even be read, and more than a handful.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Beside what pytest keeps itself, over all stages: test → what it said.
KEPT = ROOT / ".pytest_cache" / "failures.json"
FLAKY_MAX = 5
# Of what a test says when it fails: it has judged a history of messages.
FINAL = re.compile(
    r"verdict|outcome|\blost\b|unflagged|duplicate|out of order|twice", re.IGNORECASE
)


class Failures:
    """Keeps what failed; for the process that hears of all tests."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = report.longreprtext.splitlines()
            said = [line for line in lines if line.startswith("E ")] or lines[-1:]
            self._said[report.nodeid] = "\n".join(said)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._said[report.nodeid] = ""

    def pytest_sessionfinish(self) -> None:
        if self._said:
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(kept() | self._said))


def kept() -> dict[str, str]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def has_second_look(nodeid: str, said: str) -> bool:
    """Whether it may have failed for a reason that is none of the change's."""
    file, _, name = nodeid.partition("::")
    return bool(name) and (ROOT / file).is_file() and FINAL.search(said) is None


def verdict(failed: dict[str, str]) -> str:
    """Why there is no second look; "": there is."""
    if not failed:
        return "something failed that is no test"
    if len(failed) > FLAKY_MAX:
        return f"{len(failed)} tests failed: more than {FLAKY_MAX} are no coincidence"
    final = [nodeid for nodeid, said in failed.items() if not has_second_look(nodeid, said)]
    return f"no second look at {', '.join(final)}" if final else ""


def main() -> int:
    failed = kept()
    if complaint := verdict(failed):
        print(f"second look: {complaint}")
        return 1
    names = sorted(failed)
    print(f"second look, alone: {', '.join(names)}", flush=True)
    code = subprocess.call([sys.executable, "-m", "pytest", "-q", *names], cwd=ROOT)
    if code == 0:
        print(f"flaky, each a bug to be mended: {', '.join(names)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
