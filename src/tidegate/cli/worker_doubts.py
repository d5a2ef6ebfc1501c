"""Whether a queue's workers will find what they are to run, as far as it shows from here.

They run where machines are, in a folder that nobody here knows: what is not found here may well be
found there, so it is doubted and not refused. Nothing is imported: that is running somebody's code.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def worker_doubts(target: str, queue: str) -> str | None:
    """What to look after when `module:app` is not found here; None: it is."""
    module = target.partition(":")[0]
    if _is_found(module):
        return None
    return (
        f"no module {module!r} here: looked in {Path.cwd()} and where Python finds packages. "
        f"Workers of {queue} start only where it can be imported: run the nodes and machines in "
        f"its folder, or install it for them. `tidegate worker {target}` tries it; `tidegate scale "
        f"{queue} --worker MODULE:APP` names another, `--worker none` none"
    )


def _is_found(module: str) -> bool:
    head, *rest = module.split(".")
    before = list(sys.path)
    # As for workers: what lies here can be named.
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(head)
    except ValueError:
        # It is in use here, and does not say where it is from.
        return True
    finally:
        sys.path[:] = before
    for part in rest:
        if spec is None:
            return False
        # Below where the package lies, and without running its __init__.
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations or [])
    return spec is not None
