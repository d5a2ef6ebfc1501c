"""What a console shows does not depend on the store."""

from __future__ import annotations

import pytest
from console_fixtures import console

from tidegate.console import sessions, watch

__all__ = ["console"]


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other sooner than in a console for people, and so do refusals."""
    monkeypatch.setattr(watch, "POLL_S", 0.2)
    monkeypatch.setattr(watch, "_REST_S", 0.05)
    monkeypatch.setattr(sessions, "REFUSAL_S", 0.05)
