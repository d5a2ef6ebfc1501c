"""A peer that is not installed: its tests are skipped and name its package, in CI they fail."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tidegate_lab.peers.servers import ServerMissing


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test; with `CI=true`, where all peers are to be there, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def skipped_where_missing(said_by: type[Exception] = ServerMissing) -> Iterator[None]:
    """Around whatever starts the peer, or looks for it, and says by an error that it is missing."""
    try:
        yield
    except said_by as missing:
        skip_or_fail(str(missing))
