"""The Python files below a folder, without those of installed packages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from tidegate.core.errors import InvalidValue
from tidegate.fleet.code_folder import walk_code

# Applications are smaller, so more files mean that the folder is wrong.
FILES_MAX = 10_000


def python_files(folder: Path) -> Iterator[Path]:
    """Yield each Python file below the folder once."""
    for here, _, files in walk_code(folder):
        for name in files:
            if name.endswith(".py"):
                yield here / name


def revision_of(folder: Path) -> str:
    """Return a hash of the code below a folder, so that changed code has another revision."""
    files = []
    for file in python_files(folder):
        files.append(file)
        if len(files) > FILES_MAX:
            raise InvalidValue(
                f"there are more than {FILES_MAX} Python files below {folder}: run this in the "
                "folder of the application, or name it with --ship"
            )
    digest = hashlib.sha256()
    for file in sorted(files):
        try:
            content = file.read_bytes()
        except OSError:
            continue  # deleted meanwhile, or not readable
        name = str(file.relative_to(folder)).encode(errors="surrogateescape")
        digest.update(b"%d %s %d " % (len(name), name, len(content)))
        digest.update(content)
    return digest.hexdigest()
