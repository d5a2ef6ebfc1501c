"""A folder that PostgreSQL may enter, and one running `tidegate up` for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_fixtures import command_line, folder, queue
from command_line import Up, running_up

__all__ = ["command_line", "folder", "queue"]


@pytest.fixture(scope="session")
def up() -> Iterator[Up]:
    with running_up() as running:
        yield running
