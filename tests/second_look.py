"""A second look at what failed: `python tests/second_look.py`, after the stages of `make test`.

Strategy: thousands of tests on real servers share two cores, and now and then one of them waits
for a neighbour longer than it has patience. So what failed runs once more, one by one, on a machine
that is idle. What fails again has failed; what passes is named as flaky, which is a bug to be
mended, and not a reason to doubt the change at hand.

Some have no second look: what counts lost or doubled messages, or kills under load (it is just what
shows rarely that matters there), what cannot even be read, and more than a handful.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# pytest's own, over all stages: what passes later is taken out of it.
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
FLAKY_MAX = 5
# Of files: their tests judge histories, or kill.
FINAL = ("tidegate.lab.checker", "mark.faults")


def has_second_look(nodeid: str) -> bool:
    """Whether it may have failed for a reason that is none of the change's."""
    file, _, name = nodeid.partition("::")
    path = ROOT / file
    return bool(name) and path.is_file() and not any(word in path.read_text() for word in FINAL)


def verdict(failed: list[str]) -> str:
    """Why there is no second look; "": there is."""
    if not failed:
        return "something failed that is no test"
    if len(failed) > FLAKY_MAX:
        return f"{len(failed)} tests failed: more than {FLAKY_MAX} are no coincidence"
    final = [nodeid for nodeid in failed if not has_second_look(nodeid)]
    return f"no second look at {', '.join(final)}" if final else ""


def main() -> int:
    failed = sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if complaint := verdict(failed):
        print(f"second look: {complaint}")
        return 1
    print(f"second look, alone: {', '.join(failed)}", flush=True)
    code = subprocess.call([sys.executable, "-m", "pytest", "-q", *failed], cwd=ROOT)
    if code == 0:
        print(f"flaky, each a bug to be mended: {', '.join(failed)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
