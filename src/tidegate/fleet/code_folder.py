"""What of a user's folder is code: what somebody wrote there, and not what was made or kept there.

Not what is hidden, made by Python, installed (an environment, under whatever name), or data of
Tidegate's own: its database, password, logs and unpacked code would else be shipped with the
application beside which they lie, and each run would be another version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tidegate.storage.data_folder import is_data_folder

_LEFT_OUT = frozenset({"__pycache__", "node_modules"})
# Either makes a folder an environment: of venv and virtualenv, of conda.
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")


def walk_code(
    folder: Path, refuse: Callable[[OSError], None] | None = None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Each folder of code with the names of folders and files in it, in order.

    `refuse` hears of what may not be read; None: it is passed over.
    """
    for place, folders, files in os.walk(folder, onerror=refuse):
        here = Path(place)
        folders[:] = sorted(name for name in folders if _is_code(here / name))
        yield here, folders, sorted(files)


def _is_code(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in _LEFT_OUT:
        return False
    try:
        is_environment = any((folder / mark).exists() for mark in _ENVIRONMENT_MARKS)
        return not (is_environment or is_data_folder(folder))
    except OSError:
        # Whoever looks into it will hear why not.
        return True
