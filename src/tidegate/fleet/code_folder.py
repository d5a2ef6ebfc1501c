"""Which files of a user's folder are code.

Left out are hidden files, files made by Python, installed packages (an environment of any name) and
Tidegate's own data folders. Otherwise database, password, logs and unpacked code would be shipped
with the application next to them, and each run would make another version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tidegate.storage.data_folder import is_data_folder

_LEFT_OUT = frozenset({"__pycache__", "node_modules"})
# Each marks an environment: of venv and virtualenv, and of conda.
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")


def walk_code(
    folder: Path, refuse: Callable[[OSError], None] | None = None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder of code with the sorted names of folders and files in it.

    `refuse` is called with the error of an unreadable folder; None means to skip it.
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
        # The error is reported when the folder is read.
        return True
