"""The private temporary folder of a HAProxy's configuration and runtime socket."""

from __future__ import annotations

import tempfile
from pathlib import Path

SOCKET = "runtime"
# HAProxy's limit. If the usual temporary folder has a longer path, the folder is made in /tmp.
_SOCKET_PATH_MAX = 97
_SHORT_PLACE = "/tmp"


def new_folder() -> Path:
    """Make a folder for this user only, short enough for the path of a socket in it."""
    for place in (None, _SHORT_PLACE):
        folder = Path(tempfile.mkdtemp(prefix="tidegate-door-", dir=place))
        if len(bytes(folder / SOCKET)) <= _SOCKET_PATH_MAX:
            return folder
        folder.rmdir()
    raise AssertionError(f"a path in {_SHORT_PLACE} is short")
