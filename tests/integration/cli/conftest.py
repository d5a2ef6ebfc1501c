"""Commands in this process against one node that runs beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_fixtures import command_line, folder, queue
from command_line import CommandLine, Script
from served_node import ServedNode, served_node

__all__ = ["command_line", "folder", "queue"]


@pytest.fixture(scope="session")
def served(embedded_url: str) -> Iterator[ServedNode]:
    with served_node(embedded_url) as running:
        yield running


@pytest.fixture
def script(command_line: CommandLine, served: ServedNode) -> Script:
    return Script(command_line, served.url, served.store_url)
