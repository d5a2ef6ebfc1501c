"""Access does not depend on the store."""

from __future__ import annotations

from memory_fixtures import backing

__all__ = ["backing"]
