"""One agreement as samples come in: windows are closed, judged and charged, one after the other.

    sample → its window, while that is open → WindowVerdict → events, standing

Time comes from outside, as samples and as `advance`, so a loop and the simulation may use the same
ledger. A window is closed when time is `lateness_s` past its end. A sample of one that is closed
already is counted and not used, since a verdict that was acted on is not taken back. Nor is a clock
believed that was ahead and is set back: the windows that it had begun there are forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.history import History, Standing
from tidegate.agreement.violations import Event, Violations
from tidegate.agreement.windows import Sample, WindowVerdict, judged


@dataclass(frozen=True)
class Entry:
    """One window that was closed: its verdict, what it began or ended, and where that leaves us."""

    window: WindowVerdict
    events: list[Event]
    standing: Standing
    # Each promise by the last window that had data of it, which may lie before this one.
    stands: Mapping[str, Verdict]


class Ledger:
    """What is known of one agreement so far."""

    def __init__(
        self, agreement: Agreement, history: History | None = None, *, lateness_s: float = 0.0
    ) -> None:
        self._agreement = agreement
        self._lateness_s = lateness_s
        self._open: dict[float, list[Sample]] = {}
        self._closed_until_s = -math.inf
        self._clock_s = -math.inf
        self._violations = Violations(agreement)
        # To be stored by whoever wants to know the budget after a restart.
        self.history = history or History.of(agreement)
        self.late_samples = 0

    @property
    def agreement(self) -> Agreement:
        return self._agreement

    @agreement.setter
    def agreement(self, agreement: Agreement) -> None:
        """The same promises; warnings that are learned may lie elsewhere from now on."""
        self._agreement = agreement

    def set_clock(self, now_s: float) -> None:
        """The clock that samples are stamped by; whoever has one says so before each of them.

        After it was set back nothing would be judged, or the newest window would be an old one,
        until it is as late again.
        """
        window_s = self._agreement.window_s
        was_ahead = now_s < self._clock_s - window_s - self._lateness_s
        self._clock_s = now_s
        if not was_ahead:
            return
        begins_s = now_s - now_s % window_s
        # What was judged is not judged again.
        next_s = begins_s if begins_s in self._open else begins_s + window_s
        self._open = {begin: found for begin, found in self._open.items() if begin <= begins_s}
        self._closed_until_s = min(self._closed_until_s, next_s)
        self.history.forget_after(next_s)

    def take(self, sample: Sample) -> list[Entry]:
        """A sample came; the windows that it closes, which are those before its own."""
        if not math.isfinite(sample.at_s):
            return []
        begins_s = sample.at_s - sample.at_s % self._agreement.window_s
        if begins_s < self._closed_until_s:
            self.late_samples += 1
            return []
        self._open.setdefault(begins_s, []).append(sample)
        return self.advance(sample.at_s)

    def advance(self, now_s: float) -> list[Entry]:
        """It is so late; the windows that are over, in the order of time."""
        over = [
            begins_s
            for begins_s in sorted(self._open)
            if begins_s + self._agreement.window_s + self._lateness_s <= now_s
        ]
        return [self._close(begins_s) for begins_s in over]

    def so_far(self) -> WindowVerdict | None:
        """What the newest window comes to by now; None: nothing of it was measured yet."""
        if not self._open:
            return None
        begins_s = max(self._open)
        return judged(self._agreement, begins_s, self._open[begins_s])

    def go_on(self, verdicts: Mapping[str, Verdict]) -> None:
        """Promises stood so when somebody else kept this ledger: what goes on begins not again."""
        self._violations.go_on(verdicts)

    def _close(self, begins_s: float) -> Entry:
        window = judged(self._agreement, begins_s, self._open.pop(begins_s))
        self._closed_until_s = window.ends_s
        return Entry(
            window=window,
            events=self._violations.take(window),
            standing=self.history.take(self._agreement, window.ends_s, window.verdict),
            stands=self._violations.stands,
        )
