"""Whether an agreement is kept: met, warned or breached, and what is left of the error budget.

    breached   the value is at or beyond the breaching point, in the direction that is worse
    warned     at or beyond the warning point, but not breached
    met        before the warning point

    budget            = (1 − objective) · windows judged
    budget left       = 1 − breached / budget           1 untouched, 0 used up, below 0 overdrawn
    burn rate         = (breached / judged) / (1 − objective)      1 uses it up exactly in its period

A window without data is neither met nor breached: it is counted apart and leaves the budget alone.
Low throughput breaches only if the load was there: with less offered than was promised, serving all
of it is all that can be done.
"""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What one window says about one promise."""

    MET = "met"
    WARNED = "warned"
    BREACHED = "breached"
    NO_DATA = "no_data"
