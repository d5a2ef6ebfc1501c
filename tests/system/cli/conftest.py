"""A folder that PostgreSQL may enter, and one running `tidegate up` for all of these tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine, Up, running_up


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: as root PostgreSQL has an account of its own, which must get there."""
    path = Path(tempfile.mkdtemp(prefix="tidegate-cli-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def command_line() -> Iterator[CommandLine]:
    path = Path(tempfile.mkdtemp(prefix="tidegate-cli-"))
    running = CommandLine(path)
    try:
        yield running
    finally:
        running.end()
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def up() -> Iterator[Up]:
    with running_up() as running:
        yield running


@pytest.fixture
def queue(up: Up, request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"q-{request.module.__name__}-{request.node.name}"
