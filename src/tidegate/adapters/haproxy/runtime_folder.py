"""Where a HAProxy's configuration and runtime socket are: a temporary folder for this user only."""

from __future__ import annotations

import tempfile
from pathlib import Path

SOCKET = "runtime"
# HAProxy's own bound; where temporary folders have long names, there is a place with a short one.
_SOCKET_PATH_MAX = 97
_SHORT_PLACE = "/tmp"


def new_folder() -> Path:
    """For us only, and with a path that HAProxy takes for a socket in it."""
    for place in (None, _SHORT_PLACE):
        folder = Path(tempfile.mkdtemp(prefix="tidegate-door-", dir=place))
        if len(bytes(folder / SOCKET)) <= _SOCKET_PATH_MAX:
            return folder
        folder.rmdir()
    raise AssertionError(f"a path in {_SHORT_PLACE} is short")
