"""What clients of the demo wrote down, and what the checker makes of it.

While it plays the histories are followed, for whoever looks on. In the end they are judged as a
whole, with what the store still holds: lost is what was confirmed, what nobody has let go of, and
what is not there any more. The agreement is judged once more from outside, by the waits that
clients saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tidegate.agreement.document import Agreement, parse_agreement
from tidegate.agreement.evaluation import Verdict as WindowState
from tidegate.cli.demo.story import AGREEMENT, ORDERS
from tidegate.lab.checker import Outstanding, Verdict, check
from tidegate.lab.history import Event, HistoryFollower, MessageKey, merged, read_history
from tidegate.lab.promised_waits import judged_waits
from tidegate.lab.stored_messages import stored_messages


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """How the windows of an agreement came out."""

    met: int
    warned: int
    breached: int
    # What part of them may be breached.
    allowed: float

    @property
    def judged(self) -> int:
        return self.met + self.warned + self.breached

    @property
    def are_kept(self) -> bool:
        return self.judged > 0 and self.breached <= self.allowed * self.judged


class Evidence:
    """The histories of one demo."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._followers: dict[Path, HistoryFollower] = {}
        self._outstanding = Outstanding()
        self._delivered: set[MessageKey] = set()
        self.confirmed = 0
        self.again = 0

    @property
    def delivered(self) -> int:
        return len(self._delivered)

    def follow(self) -> int:
        """Read what is new; how many confirmed messages nobody has let go of yet."""
        for path in self._folder.glob("*.history"):
            self._followers.setdefault(path, HistoryFollower(path))
        for follower in self._followers.values():
            for event in follower.news():
                if event.op == "put" and event.phase == "ok":
                    self.confirmed += 1
                elif event.op == "deliver":
                    self.again += event.key in self._delivered
                    self._delivered.add(event.key)
                self._outstanding.feed(event)
        return len(self._outstanding)

    def verdict(self, store_urls: Sequence[str]) -> Verdict:
        """The checker's, over the histories of all clients and the store."""
        stored = [key for url in store_urls for key in stored_messages(url)]
        return check(self._events(), stored=stored, replicated=[ORDERS])

    def windows(self) -> tuple[Windows, float]:
        """The agreement of orders by what clients saw, and the longest wait of all, in seconds."""
        agreement = agreed()
        found, longest_s = judged_waits(self._events(), agreement, ORDERS)
        states = [one.verdict for one in found]
        counted = Windows(
            met=states.count(WindowState.MET),
            warned=states.count(WindowState.WARNED),
            breached=states.count(WindowState.BREACHED),
            allowed=1.0 - agreement.objective,
        )
        return counted, longest_s

    def _events(self) -> Iterator[Event]:
        return merged([read_history(path) for path in sorted(self._folder.glob("*.history"))])


def agreed() -> Agreement:
    """What is promised of orders."""
    return parse_agreement(AGREEMENT, f"the demo's agreement for {ORDERS}")
