"""All that a decision about an HTTP service is made on, at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.windows import WindowVerdict
from tidegate.control.service_reading import BUCKET, ServiceReading
from tidegate.core.hosting import Instance, Service

# Samples come each second: of so much of a window there must be some.
_PRESSED_PART = 0.5


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known now."""

    # Of the loop's clock.
    at: float
    service: Service
    instances: Sequence[Instance]
    # None: doors have said nothing new.
    reading: ServiceReading | None = None
    # Whether doors have been silent for long.
    is_silent: bool = False
    # The window that is open, by now; None: nothing was measured in it.
    window: WindowVerdict | None = None
    admission: int | None = None
    # Slots without work on machines that run; None: not known.
    slots_free: int | None = None
    # Why there may be no machine; "": there is no reason.
    fleet_trouble: str = ""

    def is_pressed(self, window_s: float) -> bool:
        """Whether the window that is open is warned of, or worse, for certain."""
        # By a single sample nobody can tell.
        if self.window is None or self.window.samples < _PRESSED_PART * window_s:
            return False
        return any(
            one.verdict in (Verdict.WARNED, Verdict.BREACHED)
            and one.value is not None
            # What is left of memory says nothing about how busy they are: more would take more.
            and one.metric.name != "free_memory"
            # Times come as upper bounds of buckets.
            and (one.metric.percentile is None or one.value >= BUCKET * one.metric.warning)
            # Who is turned away says nothing about how busy they are who answer the others.
            for one in (found.of_answers for found in self.window.findings)
        )

    @property
    def is_breached_for_certain(self) -> bool:
        """Whether those that were answered in the window that is open break a promised time."""
        return self.window is not None and any(
            one.value is not None and one.value >= BUCKET * one.metric.breach
            for one in (found.of_answers for found in self.window.findings)
            if one.metric.percentile is not None
        )

    @property
    def leaves_unanswered(self) -> bool:
        """Whether a promise is broken, or soon will be, by requests that got no answer."""
        return self.window is not None and any(
            one.unanswered and one.verdict in (Verdict.WARNED, Verdict.BREACHED)
            for one in self.window.findings
        )
