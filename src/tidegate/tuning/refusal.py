"""An experiment that ends without a design, and says what to do."""

from __future__ import annotations

from tidegate.core.errors import TidegateError
from tidegate.tuning.record import Record


class TuningRefused(TidegateError):
    """Nothing was designed: what was measured does not allow it."""

    name = "TUNING_REFUSED"

    def __init__(self, reason: str, record: Record | None = None) -> None:
        super().__init__(reason)
        # What was measured until then, to be looked at.
        self.record = record
