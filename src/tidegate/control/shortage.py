"""Whether more is needed than can be had: news when it has lasted, and when it is over for good.

    no slot is free, or there may be no more: for some seconds    →  told, with why
    nothing lacks any more: for some seconds                      →  told that it is over

What is in hand jumps from one look to the next, and what is needed for it jumps along: nobody is to
be woken by a moment, nor told twice of one shortage, also not by the next leader.
"""

from __future__ import annotations

BEGINS_S = 3.0
OVER_S = 10.0


class Shortage:
    """What one service lacks, as people know it; `told` is where the last leader left it."""

    def __init__(self, told: str = "") -> None:
        # Why there is too little; "": there is enough.
        self.told = told
        # Since when it is otherwise than was told; None: it is not.
        self._since: float | None = None

    def take(self, lacks: str, at: float) -> str | None:
        """What is lacking when that is news, "" when it is over, None when nothing has changed."""
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
