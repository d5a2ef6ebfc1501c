"""An empty folder, as a reader begins in one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from reader import END_S_MAX, processes_in
from waiting import eventually


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: as root PostgreSQL has an account of its own, which must get there."""
    path = Path(tempfile.mkdtemp(prefix="tidegate-docs-"))
    path.chmod(0o755)
    yield path
    try:
        eventually(lambda: not processes_in(path), "nothing is left running", END_S_MAX)
    finally:
        shutil.rmtree(path, ignore_errors=True)
