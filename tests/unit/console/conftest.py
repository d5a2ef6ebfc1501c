"""What a console shows does not depend on the store."""

from __future__ import annotations

from console_fixtures import console
from memory_fixtures import backing

__all__ = ["backing", "console"]
