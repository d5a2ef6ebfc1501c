"""The input of one decision about an HTTP service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.windows import WindowVerdict
from tidegate.control.service_reading import BUCKET, ServiceReading
from tidegate.core.hosting import Instance, Service

# Part of a window that must have samples, one a second, before its verdict is used.
_PRESSED_PART = 0.5


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The measurements of one service at one moment."""

    # Seconds of the loop's clock.
    at: float
    service: Service
    instances: Sequence[Instance]
    # None if no door has reported anything new.
    reading: ServiceReading | None = None
    # Whether no door has reported for some seconds, or ever.
    is_silent: bool = False
    # The verdict of the open window so far; None if it has no sample.
    window: WindowVerdict | None = None
    admission: int | None = None
    # Free slots on running machines; None if not known.
    slots_free: int | None = None
    # Why no machine may be available; empty if nothing is known to prevent it.
    fleet_trouble: str = ""

    def is_pressed(self, window_s: float) -> bool:
        """Return whether the open window is certainly warned of or breached."""
        # One sample is not enough to judge a window.
        if self.window is None or self.window.samples < _PRESSED_PART * window_s:
            return False
        return any(
            one.verdict in (Verdict.WARNED, Verdict.BREACHED)
            and one.value is not None
            # Low free memory does not show load, and more instances would use more memory.
            and one.metric.name != "free_memory"
            # A time is the upper bound of its bucket, so the real value may be one bucket lower.
            and (one.metric.percentile is None or one.value >= BUCKET * one.metric.warning)
            # Judge answered requests only: a rejected request says nothing about busy instances.
            for one in (found.of_answers for found in self.window.findings)
        )

    @property
    def is_breached_for_certain(self) -> bool:
        """Whether the answered requests of the open window certainly break a promised time."""
        return self.window is not None and any(
            one.value is not None and one.value >= BUCKET * one.metric.breach
            for one in (found.of_answers for found in self.window.findings)
            if one.metric.percentile is not None
        )

    @property
    def leaves_unanswered(self) -> bool:
        """Whether unanswered requests break a promise of the open window, or soon will."""
        return self.window is not None and any(
            one.unanswered and one.verdict in (Verdict.WARNED, Verdict.BREACHED)
            for one in self.window.findings
        )
