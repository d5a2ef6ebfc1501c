"""The status of an agreement as the store keeps it, for the next leader and for `tidegate sla`.

The leader writes it after each window. The next leader resumes with the stored history, so that a
change of leader does not restore used budget. The other fields are for people. The format is JSON.
"""

from __future__ import annotations

import msgspec

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.history import History, Standing, terms_of
from tidegate.agreement.ledger import Entry

# After this many windows without an update, the evaluation counts as stopped.
SILENT_WINDOWS = 3.0


class PromiseStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one promise in the last window."""

    metric: str
    verdict: Verdict
    # In the metric's unit; None if nothing was measured.
    value: float | None
    evidence: str


class KeptStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The stored status of one agreement after a window."""

    agreement: str
    # Exactly one of the two is set.
    http: str | None = None
    queue: str | None = None
    # The end of the window, in seconds since 1970, and its length.
    at: float
    window_s: float
    verdict: Verdict
    promises: list[PromiseStanding] = []
    # The verdict each promise resumes with. A last window without data ends no violation.
    stands: dict[str, Verdict] = {}
    standing: Standing
    history: History
    # The current reaction, as text; empty if none is needed.
    doing: str = ""
    # The missing resource that was reported, as text; empty if nothing is missing.
    lacks: str = ""
    # The basis of learned warning points: the fastest worsening of each promise, per second.
    slopes_per_s: dict[str, float] = {}
    # What the offer reduces and why; empty if it reduces nothing.
    reduced: str = ""

    @staticmethod
    def of(
        agreement: Agreement, entry: Entry, history: History, doing: str = "", lacks: str = ""
    ) -> KeptStanding:
        """Return the status to store after the window of an entry."""
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
        """Return the status in a JSON document; None if its format is unknown."""
        try:
            return msgspec.json.decode(document, type=KeptStanding)
        except msgspec.DecodeError:
            return None

    def is_of(self, agreement: Agreement) -> bool:
        """Return whether the agreement has the same terms, so that the history continues."""
        return self.history.terms == terms_of(agreement)

    def is_silent(self, now: float) -> bool:
        """Return whether no leader has judged the agreement for several windows."""
        return now - self.at > SILENT_WINDOWS * self.window_s + 2.0
