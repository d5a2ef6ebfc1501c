"""A peer that is not installed: its tests are skipped and name its package, in CI they fail."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from tidegate_lab.peers.servers import ServerMissing


@contextlib.contextmanager
def skipped_where_missing(said_by: type[Exception] = ServerMissing) -> Iterator[None]:
    """Around whatever starts the peer, or looks for it, and says by an error that it is missing."""
    try:
        yield
    except said_by as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
