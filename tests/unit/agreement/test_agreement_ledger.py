"""Samples come in one by one, and verdicts, events and the budget come out in time."""

from __future__ import annotations

import math
import random

import pytest

from tidegate.agreements.document import Agreement, parse_agreement
from tidegate.agreements.evaluation import AgreementSample, Verdict, judge_window, windows_of
from tidegate.agreements.ledger import (
    AgreementHistory,
    AgreementLedger,
    LedgerEntry,
    Transition,
    terms_of,
)


def promised(more: str = "") -> Agreement:
    return parse_agreement(
        f'name = "a"\nqueue = "q"\nobjective = 0.5\nperiod = "100s"\n{more}\n'
        '[metrics.wait_p90]\nbreach = "6s"',
        "a.toml",
    )


def waited(at_s: float, wait_s: float) -> AgreementSample:
    return AgreementSample(at_s, times={"wait": [(wait_s, 1.0)]})


def test_a_window_is_judged_when_it_is_over() -> None:
    ledger = AgreementLedger(promised())

    assert ledger.add_sample(waited(3.0, 1.0)) == []
    assert ledger.add_sample(waited(9.9, 7.0)) == []
    assert ledger.advance(9.9) == []
    [entry] = ledger.advance(10.0)

    assert entry.window.verdict is Verdict.BREACHED
    assert [event.turn for event in entry.events] == [Transition.BREACHED]
    # Of ten windows five may be breached; one is.
    assert math.isclose(entry.standing.budget_left, 0.8)
    assert ledger.advance(1000.0) == []


def test_the_first_sample_of_the_next_window_closes_the_one_before() -> None:
    ledger = AgreementLedger(promised())
    ledger.add_sample(waited(3.0, 1.0))

    [entry] = ledger.add_sample(waited(10.0, 7.0))
    assert (entry.window.begins_s, entry.window.verdict) == (0.0, Verdict.MET)

    # Too late to be counted, and not forgotten either.
    assert ledger.add_sample(waited(9.0, 7.0)) == []
    assert ledger.late_samples == 1


def test_late_sample_counts_within_the_allowed_lateness() -> None:
    ledger = AgreementLedger(promised(), lateness_s=2.0)
    ledger.add_sample(waited(3.0, 1.0))

    assert ledger.add_sample(waited(11.0, 1.0)) == []
    assert ledger.add_sample(waited(9.0, 7.0)) == []
    [entry] = ledger.add_sample(waited(12.0, 1.0))

    assert (entry.window.samples, entry.window.verdict) == (2, Verdict.BREACHED)
    assert ledger.late_samples == 0


def test_ledger_gives_the_same_windows_for_single_samples_as_for_all() -> None:
    agreement, chance = promised(), random.Random(3)
    samples = [waited(at_s / 3.0, chance.uniform(0.0, 7.0)) for at_s in range(900)]
    ledger = AgreementLedger(agreement)

    entries: list[LedgerEntry] = [
        entry for sample in samples for entry in ledger.add_sample(sample)
    ]
    entries += ledger.advance(math.inf)

    assert [entry.window for entry in entries] == [
        judge_window(agreement, begins_s, found)
        for begins_s, found in windows_of(agreement, samples)
    ]
    assert {entry.window.verdict for entry in entries} >= {Verdict.WARNED, Verdict.BREACHED}


def test_a_budget_survives_a_restart_and_another_number_of_replicas() -> None:
    agreement = promised()
    ledger = AgreementLedger(agreement)
    ledger.add_sample(waited(1.0, 7.0))
    ledger.advance(10.0)

    more = promised("replicas = { min = 2, max = 9 }")
    assert terms_of(more) == terms_of(agreement) == ledger.history.terms
    again = AgreementLedger(more, ledger.history)
    again.add_sample(waited(11.0, 7.0))
    [entry] = again.advance(20.0)

    assert math.isclose(entry.standing.budget_left, 0.6)


def test_the_terms_of_a_budget_are_what_breaches_it() -> None:
    def terms(metric: str = "wait_p99", breach: str = "6s", warning: str = "20%") -> str:
        promise = f'[metrics.{metric}]\nbreach = "{breach}"\nwarning = "{warning}"\n'
        return terms_of(parse_agreement(f'name = "a"\nqueue = "q"\n{promise}', "a.toml"))

    assert terms(warning="10%") == terms(warning="learned") == terms()
    assert terms(breach="5s") != terms()
    assert terms(metric="wait_p95") != terms()


def test_agreement_history_stays_bounded() -> None:
    agreement = parse_agreement(
        'name = "a"\nqueue = "q"\nwindow = "1m"\n[metrics.wait_p90]\nbreach = "6s"', "a.toml"
    )
    history = AgreementHistory.of(agreement)
    for minute in range(40 * 24 * 60 // 7):
        history.add_window(agreement, 420.0 * minute, Verdict.MET)

    # Six hours by the minute, four weeks by the hour.
    assert len(history.minutes) <= 6 * 60 + 2
    assert len(history.hours) <= 28 * 24 + 2


@pytest.mark.parametrize("ahead_for_s", [4, 12, 300])
def test_a_clock_that_was_ahead_and_is_set_back_hides_nothing(ahead_for_s: int) -> None:
    """It was an hour ahead, and all was well there; now nothing is."""
    ledger, entries = AgreementLedger(promised()), []
    for second in range(ahead_for_s + 100):
        is_ahead = second < ahead_for_s
        clock_s = 10_000.0 + second + (3600.0 if is_ahead else 0.0)
        ledger.set_clock(clock_s)
        entries += ledger.add_sample(waited(clock_s, 1.0 if is_ahead else 7.0))
        newest = ledger.so_far()
        assert newest is None or newest.begins_s <= clock_s

    breached = [entry for entry in entries if entry.window.verdict is Verdict.BREACHED]
    # Of ten windows the first may be one that was judged before, and the last is not over.
    assert len(breached) >= 8
    assert breached[-1].standing.last_hour.breached == len(breached)
    assert breached[-1].standing.last_hour.met == 0
    begins = [entry.window.begins_s for entry in entries]
    assert len(set(begins)) == len(begins)
