"""What a benchmark reports with: what was measured, its value, its unit, what is wanted."""

from __future__ import annotations

from collections.abc import Callable

Figure = Callable[[str, float, str, str], None]
