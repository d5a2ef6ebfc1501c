"""The error of an experiment that ends without a design."""

from __future__ import annotations

from tidegate.core.errors import TidegateError
from tidegate.tuning.record import Record


class TuningRefused(TidegateError):
    """The measurements do not allow a design. The text says why and what to do."""

    name = "TUNING_REFUSED"

    def __init__(self, reason: str, record: Record | None = None) -> None:
        super().__init__(reason)
        # The samples measured until then, for inspection.
        self.record = record
