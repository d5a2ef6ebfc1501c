"""Detects a lasting shortage: reported when it has lasted, and when it is over for good.

    no slot is free, or the maximum is reached, for BEGINS_S     → reported, with the reason
    nothing is lacking, for OVER_S                               → reported as over

Load fluctuates between samples, and so does what it needs. A moment of shortage must not alert
anyone, and one shortage must not alert twice, also after a change of leader.
"""

from __future__ import annotations

BEGINS_S = 3.0
OVER_S = 10.0


class Shortage:
    """The shortage of one queue or service; `told` is what the last leader reported."""

    def __init__(self, told: str = "") -> None:
        # Why there is too little, as last reported; empty if there is enough.
        self.told = told
        # Since when the situation differs from what was reported; None if it does not differ.
        self._since: float | None = None

    def take(self, lacks: str, at: float) -> str | None:
        """Return the text of a new shortage, "" when it is over, None if nothing has changed."""
        if bool(lacks) == bool(self.told):
            self._since = None
            return None
        if self._since is None:
            self._since = at
        if at - self._since < (BEGINS_S if lacks else OVER_S):
            return None
        self._since = None
        self.told = lacks
        return lacks
