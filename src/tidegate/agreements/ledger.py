"""The incremental evaluation of one agreement: windows are closed and judged as samples arrive.

Theory of operation
-------------------

    sample → open window → (window ends) → WindowVerdict → transitions, status

The ledger has no clock. Its owner, a control loop or the simulation, passes in time and samples:

1. `set_clock` gives the clock that stamps the samples. Call it before each sample.
2. `take` adds a sample to its window, and closes the windows that end before the sample.
3. `advance` closes windows when no sample comes.

A window closes when time is `lateness_s` past its end. Closing it does three things. It judges the
samples, it computes the transitions of each promise (`violations`), and it charges the error budget
(`history`). The result is one `LedgerEntry` per window, in time order.

Invariants and failures:

- A window is judged once. A sample of a closed window is counted in `late_samples` and dropped,
  because the control loops may already have acted on the verdict.
- A window without samples does not exist. It costs no budget.
- A clock that was ahead may be set back. The ledger then drops the windows that began in the wrong
  future, and removes their counts from the history. Otherwise it would judge nothing until the
  clock reached that time again.
- The ledger is not persistent. After each window the owner stores the history and the verdicts of
  the promises (`StoredAgreementStatus`). The next leader passes the history to the constructor and
  the verdicts to `go_on`. A change of leader thus neither restores budget nor repeats an alert.
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
    """One closed window: its verdict, the transitions it caused, and the status after it."""

    window: WindowVerdict
    events: list[Event]
    standing: Standing
    # The verdict of each promise in the last window with data for it, which may be an earlier
    # window.
    stands: Mapping[str, Verdict]


class Ledger:
    """The evaluation state of one agreement: open windows, transitions and history."""

    def __init__(
        self, agreement: Agreement, history: History | None = None, *, lateness_s: float = 0.0
    ) -> None:
        self._agreement = agreement
        self._lateness_s = lateness_s
        self._open: dict[float, list[Sample]] = {}
        self._closed_until_s = -math.inf
        self._clock_s = -math.inf
        self._violations = Violations(agreement)
        # The owner stores it, so that the error budget survives a restart.
        self.history = history or History.of(agreement)
        self.late_samples = 0

    @property
    def agreement(self) -> Agreement:
        return self._agreement

    @agreement.setter
    def agreement(self, agreement: Agreement) -> None:
        """Replace the agreement by one with the same promises and other warning points."""
        self._agreement = agreement

    def set_clock(self, now_s: float) -> None:
        """Set the clock that stamps the samples; call it before each sample.

        If the clock was set back by more than a window, drop the windows that lie in the future.
        Otherwise the ledger would judge nothing until the clock reached its former value.
        """
        window_s = self._agreement.window_s
        was_ahead = now_s < self._clock_s - window_s - self._lateness_s
        self._clock_s = now_s
        if not was_ahead:
            return
        begins_s = now_s - now_s % window_s
        # A window that was judged is not judged again.
        next_s = begins_s if begins_s in self._open else begins_s + window_s
        self._open = {begin: found for begin, found in self._open.items() if begin <= begins_s}
        self._closed_until_s = min(self._closed_until_s, next_s)
        self.history.forget_after(next_s)

    def take(self, sample: Sample) -> list[Entry]:
        """Add a sample, and return an entry for each window that it closes, in time order.

        A sample of a closed window is counted and ignored. A sample without a finite time is
        ignored.
        """
        if not math.isfinite(sample.at_s):
            return []
        begins_s = sample.at_s - sample.at_s % self._agreement.window_s
        if begins_s < self._closed_until_s:
            self.late_samples += 1
            return []
        self._open.setdefault(begins_s, []).append(sample)
        return self.advance(sample.at_s)

    def advance(self, now_s: float) -> list[Entry]:
        """Return an entry for each open window that is over at `now_s`, in time order."""
        over = [
            begins_s
            for begins_s in sorted(self._open)
            if begins_s + self._agreement.window_s + self._lateness_s <= now_s
        ]
        return [self._close(begins_s) for begins_s in over]

    def so_far(self) -> WindowVerdict | None:
        """Return the verdict of the newest open window so far; None if there is no open window."""
        if not self._open:
            return None
        begins_s = max(self._open)
        return judged(self._agreement, begins_s, self._open[begins_s])

    def go_on(self, verdicts: Mapping[str, Verdict]) -> None:
        """Take over the verdicts of a previous owner, so that no violation begins twice."""
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
