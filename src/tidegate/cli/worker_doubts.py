"""A check whether a queue's workers can import their application, as far as this host can tell.

Workers run on other machines, in an unknown working folder. A missing module here may exist there,
so the check returns a warning and no error. It imports nothing, because an import runs user code.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def worker_doubts(target: str, queue: str) -> str | None:
    """Return a warning if `module:app` is not found here; None if it is."""
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
    # Workers search the working folder, too.
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(head)
    except ValueError:
        # The module is already loaded and has no __spec__.
        return True
    finally:
        sys.path[:] = before
    for part in rest:
        if spec is None:
            return False
        # Search in the package's folder, without running its __init__.
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations or [])
    return spec is not None
