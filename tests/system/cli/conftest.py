"""A folder that PostgreSQL may enter, and one running `tidegate up` for all of these tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_fixtures import command_line, folder, queue
from command_line import Up, running_up

__all__ = ["command_line", "folder", "queue"]


@pytest.fixture(scope="session")
def up() -> Iterator[Up]:
    with running_up() as running:
        yield running


@pytest.fixture(scope="session")
def store_folder() -> Iterator[Path]:
    """For tests that run a `tidegate up` of their own: PostgreSQL makes its files there once."""
    path = Path(tempfile.mkdtemp(prefix="tidegate-cli-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
