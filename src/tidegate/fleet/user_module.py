"""Imports a user's module from the working directory.

If the import fails, the traceback begins at the user's own file, without our frames. The error then
says in one sentence what was tried.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from tidegate.core.errors import InvalidValue

_PACKAGE = Path(__file__).parent.parent
# With the separator: a package named tidegate_shop is the user's. Also if installed by a link.
_OURS = tuple(f"{folder}{os.sep}" for folder in (_PACKAGE, _PACKAGE.resolve()))
_IMPORTING = ("<frozen importlib", importlib.__file__)
# Characters of the last line of a traceback.
_REASON_MAX = 500


def user_module(name: str) -> ModuleType:
    """Import a module; raise `InvalidValue` if it does not exist or fails."""
    here = str(Path.cwd())
    if here not in sys.path:
        # As Python itself does for a script: modules in the working directory can be imported.
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as failure:
        missing = failure.name or ""
        if name == missing or name.startswith(missing + "."):
            raise InvalidValue(
                f"no module {name!r}: looked in {here} and where Python finds packages"
            ) from None
        print_from_users_file(failure)
        raise InvalidValue(
            f"{name!r} was found, but imports {missing!r}, which is not installed"
        ) from None
    except (Exception, SystemExit) as failure:
        # A script without `if __name__ == "__main__"` may exit while it is imported.
        print_from_users_file(failure)
        raise InvalidValue(f"{name!r} fails when imported: {_last_line(failure)}") from None


def print_from_users_file(failure: BaseException) -> None:
    """Print a traceback without our frames and those of the import system."""
    told = traceback.TracebackException.from_exception(failure)
    frames = [frame for frame in told.stack if not frame.filename.startswith(_IMPORTING)]
    while frames and frames[0].filename.startswith(_OURS):
        del frames[0]
    told.stack = traceback.StackSummary.from_list(frames)
    # A syntax error has no frames, and names its place itself.
    lines = told.format() if frames else told.format_exception_only()
    sys.stderr.write("".join(lines))


def _last_line(failure: BaseException) -> str:
    lines = "".join(traceback.format_exception_only(failure)).strip().splitlines()
    return lines[-1].strip()[:_REASON_MAX]
