"""Where an agreement stands, as it is kept in a store: for the next leader, and for `tidegate sla`.

Written after each window by whoever judges it. The next leader goes on with the history, so that
no budget is given back by a change of leaders; people read the rest. All of it is JSON.
"""

from __future__ import annotations

import msgspec

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.history import History, Standing, terms_of
from tidegate.agreement.ledger import Entry

# Windows without a word: whoever judged is gone, or nothing is measured.
SILENT_WINDOWS = 3.0


class PromiseStanding(msgspec.Struct, frozen=True, kw_only=True):
    """One promise in the last window."""

    metric: str
    verdict: Verdict
    # In the metric's unit; None: nothing was measured.
    value: float | None
    evidence: str


class KeptStanding(msgspec.Struct, frozen=True, kw_only=True):
    """One agreement after a window."""

    agreement: str
    # Which of the two it governs.
    http: str | None = None
    queue: str | None = None
    # The end of the window, in seconds since 1970, and how long it was.
    at: float
    window_s: float
    verdict: Verdict
    promises: list[PromiseStanding] = []
    # What each promise goes on from: a window without data, such as the last, has ended nothing.
    stands: dict[str, Verdict] = {}
    standing: Standing
    history: History
    # What is being done about it, in words; "": nothing needs to be.
    doing: str = ""
    # What people were told is needed and cannot be had; "": nothing.
    lacks: str = ""
    # What learned warnings rest on: how fast each promise was seen to get worse, per second.
    slopes_per_s: dict[str, float] = {}
    # What is offered less than was asked for, and why; "": all of it is.
    reduced: str = ""

    @staticmethod
    def of(
        agreement: Agreement, entry: Entry, history: History, doing: str = "", lacks: str = ""
    ) -> KeptStanding:
        """What is to be kept after the window of an entry."""
        window = entry.window
        return KeptStanding(
            agreement=agreement.name,
            http=agreement.http,
            queue=agreement.queue,
            at=window.ends_s,
            window_s=agreement.window_s,
            verdict=window.verdict,
            promises=[
                PromiseStanding(
                    metric=one.metric.name,
                    verdict=one.verdict,
                    value=one.value,
                    evidence=str(one),
                )
                for one in window.findings
            ],
            stands=dict(entry.stands),
            standing=entry.standing,
            history=history,
            doing=doing,
            lacks=lacks,
            reduced=agreement.resources.reduced,
        )

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(document: bytes) -> KeptStanding | None:
        """None: it was written by another version, and is not ours to guess."""
        try:
            return msgspec.json.decode(document, type=KeptStanding)
        except msgspec.DecodeError:
            return None

    def is_of(self, agreement: Agreement) -> bool:
        """Whether it was promised the same: then it is one history."""
        return self.history.terms == terms_of(agreement)

    def is_silent(self, now: float) -> bool:
        """Whether nobody has judged it for some windows."""
        return now - self.at > SILENT_WINDOWS * self.window_s + 2.0
