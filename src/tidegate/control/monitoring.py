"""The monitoring service: what doors and instances report, judged against the agreement.

    door samples → intervals → agreement.windows.Sample → Ledger → verdicts, events, standing
                             → one reading of all doors, for the configuration

This is the first of two levels; the second is a probe that asks from outside (control/probe.py).
`Disagreement` tells when one of them says well and the other does not, for several samples: a door
that nobody can reach thinks that all is quiet, and a health path may answer while clients get
errors.

What was kept of an agreement comes back with the next leader: its budget is not given back, and a
breach that goes on does not begin a second time. Nor does either happen when the document is
written anew and promises the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidegate.agreement.document import Agreement
from tidegate.agreement.history import terms_of
from tidegate.agreement.http_sample import sample_of
from tidegate.agreement.kept_standing import KeptStanding
from tidegate.agreement.ledger import Entry, Ledger
from tidegate.agreement.windows import WindowVerdict
from tidegate.control.probe import ProbeSample
from tidegate.control.service_reading import DoorReader, ServiceReading, percentile_s
from tidegate.core.hosting import DoorSample, Instance

# Samples take so long from a door to here, at most.
LATENESS_S = 1.5
# Samples in a row for which both levels must differ, or agree again.
DIFFERS_SAMPLES = 4
_SLOWER = 2.0
_SLOWER_S = 0.5
# What doors said longer ago is not compared with what a probe sees now.
_SAME_TIME_S = 2.0
# A door that says nothing for so long is asked no more, whatever became of it.
_GIVEN_UP_S = 600.0
# Of all requests: what is more than a mishap.
_REFUSED_PART = 0.1
# Of a door that has enough to do.
_REFUSED_STATUS = 503


@dataclass(frozen=True)
class Measured:
    """What a look has brought."""

    # None: nothing new, or nothing yet.
    reading: ServiceReading | None
    # Windows that are over.
    entries: list[Entry]
    # The window that is open, by now.
    window: WindowVerdict | None
    is_silent: bool


class Monitoring:
    """One service under its agreement."""

    def __init__(self, agreement: Agreement, kept: KeptStanding | None = None) -> None:
        self.agreement = agreement
        self._reader = DoorReader()
        is_same = kept is not None and kept.is_of(agreement)
        self.ledger = Ledger(
            agreement,
            kept.history if kept is not None and is_same else None,
            lateness_s=LATENESS_S,
        )
        if kept is not None and is_same:
            self.ledger.go_on(kept.stands)

    def follow(self, agreement: Agreement) -> bool:
        """It is written anew; True: it promises something else, and that is another budget."""
        if self.ledger.history.terms == terms_of(agreement):
            self.agreement = self.ledger.agreement = agreement
            return False
        self.agreement = agreement
        self.ledger = Ledger(agreement, lateness_s=LATENESS_S)
        return True

    def move_warnings(self, agreement: Agreement) -> None:
        """The same promises, their learned warnings elsewhere: it is one history."""
        self.agreement = self.ledger.agreement = agreement

    def take(
        self, samples: Sequence[DoorSample], instances: Sequence[Instance], at: float, wall: float
    ) -> Measured:
        """What is known now; `at` is the loop's clock, `wall` that of people and doors."""
        free = [one.free_memory_bytes for one in instances]
        entries: list[Entry] = []
        self.ledger.set_clock(wall)
        for interval in self._reader.take(samples, at):
            sample = sample_of(interval.between, interval.interval_s, free)
            # A clock that runs ahead would close windows that other doors are in still, and one
            # that is behind would find its own closed: neither is believed.
            if not wall - LATENESS_S <= sample.at_s <= wall:
                sample = replace(sample, at_s=wall)
            entries += self.ledger.take(sample)
        entries += self.ledger.advance(wall)
        return Measured(
            reading=self._reader.reading(at),
            entries=entries,
            window=self.ledger.so_far(),
            is_silent=self._reader.is_silent(at),
        )


class Disagreement:
    """Whether what doors report and what a probe sees are the same."""

    def __init__(self) -> None:
        # What differs, in words; "": both say the same.
        self.now = ""
        self._differs = 0
        self._agrees = 0

    def take(
        self, probe: ProbeSample, reading: ServiceReading, *, is_bounded: bool = False
    ) -> str | None:
        """A new disagreement in words, "" when one is over, None when nothing has changed.

        `is_bounded`: doors are told to refuse what is too much, and that is no failure of theirs,
        also where it is the probe that they refuse.
        """
        if is_bounded and probe.status == _REFUSED_STATUS:
            return None
        return self._told(_differs(probe, reading, 0.0 if is_bounded else reading.refused_per_s))

    def take_alone(self, probe: ProbeSample, silence: str = "no door reports") -> str | None:
        """The same while doors are silent: they may have died, all of them."""
        failure = probe.failure
        return self._told(f"{silence}, and the probe fails: {failure}" if failure else "")

    @property
    def is_over(self) -> bool:
        """Whether both have said the same for long enough."""
        return self._agrees >= DIFFERS_SAMPLES

    def _told(self, differs: str) -> str | None:
        self._differs = self._differs + 1 if differs else 0
        self._agrees = 0 if differs else self._agrees + 1
        if differs and not self.now and self._differs >= DIFFERS_SAMPLES:
            self.now = differs
            return differs
        if self.now and self._agrees >= DIFFERS_SAMPLES:
            self.now = ""
            return ""
        return None


class Disagreements:
    """The same of every door by itself: one that is well must not hide another that is not.

    Who says nothing any more is asked on: to be sure that a door hangs takes longer than the others
    take to go on without it. One that has ended is another matter: nobody listens there.
    """

    def __init__(self) -> None:
        self._by_address: dict[str, Disagreement] = {}
        # When each was last among those that report, by the loop's clock.
        self._heard_at: dict[str, float] = {}
        self._reading: ServiceReading | None = None

    def follow(self, reading: ServiceReading) -> bool:
        """What doors say now; True: one that disagreed is there no more."""
        self._reading = reading
        self._heard_at |= dict.fromkeys(reading.addresses, reading.at)
        gone = [a for a, heard_at in self._heard_at.items() if reading.at - heard_at > _GIVEN_UP_S]
        disagreed = [self._forget(address) for address in gone]
        return any(disagreed)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Doors to be asked."""
        return tuple(self._heard_at)

    def _forget(self, address: str) -> bool:
        """Whether it disagreed."""
        self._heard_at.pop(address, None)
        known = self._by_address.pop(address, None)
        return known is not None and bool(known.now)

    def take(
        self, probe: ProbeSample, at: float, *, is_silent: bool, is_bounded: bool
    ) -> str | None:
        """As `Disagreement.take`; `is_silent`: no door has reported for a while."""
        if probe.address not in self._heard_at:
            # It was forgotten while it was asked.
            return None
        own = self._by_address.setdefault(probe.address, Disagreement())
        said = None
        if is_silent:
            said = own.take_alone(probe)
        elif self._reading is not None and at - self._reading.at <= _SAME_TIME_S:
            if probe.address in self._reading.addresses:
                said = own.take(probe, self._reading, is_bounded=is_bounded)
            else:
                said = self._take_silent(probe, own)
        return f"{said} (asked at {probe.address})" if said else said

    def _take_silent(self, probe: ProbeSample, own: Disagreement) -> str | None:
        """Of a door that is silent while others report."""
        if probe.nobody_listens:
            return "" if self._forget(probe.address) else None
        said = own.take_alone(probe, "the door reports no more")
        if own.is_over:
            self._forget(probe.address)
        return said


def _differs(probe: ProbeSample, reading: ServiceReading, refused_per_s: float) -> str:
    turned_away = refused_per_s + sum(one.bad_per_s for one in reading.instances.values())
    handled = reading.answered_per_s + refused_per_s
    is_well = not reading.trouble and turned_away <= _REFUSED_PART * handled
    if probe.failure and is_well:
        return f"doors report no trouble, and the probe fails: {probe.failure}"
    if not probe.failure and not is_well:
        said = reading.trouble or (
            f"{turned_away:.3g} of {handled:.3g} requests a second turned away or failed"
        )
        return f"the probe is well, and doors report: {said}"
    slowest_s = percentile_s(reading.response, 0.95)
    if probe.failure or slowest_s is None:
        return ""
    if probe.duration_s <= _SLOWER * slowest_s + _SLOWER_S:
        return ""
    return (
        f"doors report that 95 % are answered within {slowest_s:.3g} s, and the probe waits "
        f"{probe.duration_s:.3g} s"
    )
