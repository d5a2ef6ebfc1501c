"""A unit test starts no process and opens no database: this folder's fixtures see to it.

Its nodes are on a store in memory.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
from typing import Any

import pytest
from memory_fixtures import backing

__all__ = ["backing"]


def _refuse(*_: Any, **__: Any) -> Any:
    pytest.fail("a unit test starts no process: move it to tests/integration or tests/system")


@pytest.fixture(autouse=True, scope="module")
def no_process() -> Any:
    # Python asks `uname` for this once, in a process, and keeps the answer.
    platform.platform()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess.Popen, "__init__", _refuse)
        for name in ("create_subprocess_exec", "create_subprocess_shell"):
            patched.setattr(asyncio, name, _refuse)
        for name in ("fork", "forkpty", "posix_spawn"):
            patched.setattr(os, name, _refuse)
        yield


@pytest.fixture(scope="session")
def embedded_url() -> str:
    pytest.fail("a unit test opens no database: move it to tests/integration")


@pytest.fixture(scope="session")
def external_url() -> str:
    pytest.fail("a unit test opens no database: move it to tests/integration")
