"""An experiment of seconds takes minutes on a busy machine: its guard against hanging is longer."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
HANGS_AFTER_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HANGS_AFTER_S))
