"""The histories that clients of the demo record, and the checker's result.

During the run the histories are followed for display. At the end they are checked as a whole,
together with the messages still in the store. A message is lost if it was confirmed, never
acknowledged, and is not in the store. The agreement is evaluated once more from the waits in the
histories.
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
    """The number of an agreement's windows per verdict."""

    met: int
    warned: int
    breached: int
    # The fraction of windows that may be breached.
    allowed: float

    @property
    def judged(self) -> int:
        return self.met + self.warned + self.breached

    @property
    def are_kept(self) -> bool:
        return self.judged > 0 and self.breached <= self.allowed * self.judged


class Evidence:
    """The histories of one run."""

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
        """Read new events, and return the number of confirmed messages not yet acknowledged."""
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
        """Return the checker's result for the histories of all clients and the store."""
        stored = [key for url in store_urls for key in stored_messages(url)]
        return check(self._events(), stored=stored, replicated=[ORDERS])

    def windows(self) -> tuple[Windows, float]:
        """Return the windows of `orders` as clients saw them, and the longest wait in seconds."""
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
    """Return the agreement of `orders`."""
    return parse_agreement(AGREEMENT, f"the demo's agreement for {ORDERS}")
