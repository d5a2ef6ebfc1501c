"""Commands in this process, and a folder that PostgreSQL may enter."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: as root PostgreSQL has an account of its own, which must get there."""
    path = Path(tempfile.mkdtemp(prefix="tidegate-cli-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def command_line() -> Iterator[CommandLine]:
    """Run commands in this process, in an empty folder."""
    path = Path(tempfile.mkdtemp(prefix="tidegate-cli-"))
    yield CommandLine(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"q-{request.module.__name__}-{request.node.name}"
