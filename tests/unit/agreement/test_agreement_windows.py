"""Samples become windows, windows verdicts with evidence, and verdicts what begins and ends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from written_documents import documents

from tidegate.agreements.document import Agreement, AgreementInvalid, parse_agreement
from tidegate.agreements.evaluation import (
    AgreementSample,
    Verdict,
    judge_window,
    promise_finding,
    windows_of,
)
from tidegate.agreements.ledger import AgreementHistory, Transition, Violations


def agreement(metrics: str, head: str = 'window = "10s"') -> Agreement:
    return parse_agreement(f'name = "a"\nqueue = "q"\n{head}\n{metrics}', "a.toml")


WAIT = agreement('[metrics.wait_p90]\nbreach = "6s"')
THROUGHPUT = agreement("[metrics.throughput]\nbreach = 100")
RESPONSE = agreement('[metrics.response_p90]\nbreach = "6s"\n[metrics.service_p90]\nbreach = "6s"')


def test_samples_fall_into_the_window_in_which_they_end() -> None:
    samples = [AgreementSample(at_s) for at_s in (20.0, 9.99, 10.0, 19.0, math.nan)]

    assert [(begins_s, len(found)) for begins_s, found in windows_of(WAIT, samples)] == [
        (0.0, 1),
        (10.0, 2),
        (20.0, 1),
    ]


KEPT_UP_TO = agreement(
    '[metrics.wait_p90]\nbreach = "6s"\n[metrics.throughput]\nbreach = 50\nwarning = 60',
    'window = "10s"\nload_max = 60',
)


def seconds_of(came: float, served: float, wait_s: float) -> list[AgreementSample]:
    return [
        AgreementSample(at_s, accepted=came, served=served, times={"wait": [(wait_s, served)]})
        for at_s in (1.0, 2.0, 3.0)
    ]


def test_wait_above_the_agreed_load_is_warned_and_not_breached() -> None:
    found = judge_window(KEPT_UP_TO, 0.0, seconds_of(came=100.0, served=60.0, wait_s=9.0))

    assert found.verdict is Verdict.WARNED
    assert found.evidence[0].endswith("; 100/s were offered, and it is kept up to 60/s")

    just_so = judge_window(KEPT_UP_TO, 0.0, seconds_of(came=60.0, served=60.0, wait_s=9.0))
    assert just_so.verdict is Verdict.BREACHED, "for so much it was promised"


def test_a_throughput_is_breached_whatever_more_comes() -> None:
    found = judge_window(KEPT_UP_TO, 0.0, seconds_of(came=100.0, served=40.0, wait_s=9.0))

    assert [one.verdict for one in found.findings] == [Verdict.WARNED, Verdict.BREACHED]


def test_another_load_to_keep_it_up_to_is_another_budget() -> None:
    plain, bounded = (
        agreement('[metrics.wait_p90]\nbreach = "6s"', head) for head in ("", "load_max = 60")
    )

    assert AgreementHistory.of(plain).terms != AgreementHistory.of(bounded).terms


@pytest.mark.parametrize(
    ("late", "expected"),
    # Of a hundred, ten may be at six seconds or longer.
    [(0, Verdict.MET), (10, Verdict.MET), (11, Verdict.BREACHED), (100, Verdict.BREACHED)],
)
def test_a_percentile_is_breached_when_too_few_are_shorter(late: int, expected: Verdict) -> None:
    # In two samples, none of which would tell by itself.
    first = AgreementSample(1.0, times={"wait": [(1.0, 50.0 - late / 2), (6.0, late / 2)]})
    second = AgreementSample(2.0, times={"wait": [(0.5, 50.0 - late / 2), (7.0, late / 2)]})

    found = judge_window(WAIT, 0.0, [first, second])

    assert found.verdict is expected
    assert found.findings[0].count == 100.0
    assert found.findings[0].within == pytest.approx(1.0 - late / 100.0)


def test_between_warning_and_breach_is_a_warning() -> None:
    found = judge_window(
        WAIT, 0.0, [AgreementSample(1.0, times={"wait": [(1.0, 80.0), (5.0, 20.0)]})]
    )

    assert found.verdict is Verdict.WARNED
    assert found.findings[0].value == 5.0
    assert found.evidence == [
        "wait_p90 was 5s (warns at 4.8s, breaches at 6s); 100.0000% of 100 were shorter than the "
        "breaching point"
    ]


def test_requests_that_got_no_answer_took_longer_than_was_promised() -> None:
    # Given a service that answers nobody
    found = judge_window(RESPONSE, 0.0, [AgreementSample(1.0, refused=5.0, unanswered=5.0)])

    # Then the promise about responses is broken, and nothing is known of what services take
    response, service = found.findings
    assert (found.verdict, service.verdict) == (Verdict.BREACHED, Verdict.NO_DATA)
    assert (response.value, response.of_answers.verdict) == (None, Verdict.NO_DATA)
    assert found.evidence == [
        "response_p90 was without an end (warns at 4.8s, breaches at 6s); 0.0000% of 5 were "
        "shorter than the breaching point; 5 got no answer"
    ]


@pytest.mark.parametrize(("unanswered", "expected"), [(10, Verdict.MET), (11, Verdict.BREACHED)])
def test_some_without_an_answer_are_among_the_slowest(unanswered: int, expected: Verdict) -> None:
    answered = {"response": [(1.0, 100.0 - unanswered)]}
    found = judge_window(
        RESPONSE, 0.0, [AgreementSample(1.0, unanswered=unanswered, times=answered)]
    ).findings[0]

    assert (found.verdict, found.count) == (expected, 100.0)
    # Those that were answered were quick.
    assert found.of_answers.verdict is Verdict.MET


def test_unanswered_request_beyond_the_promise_counts_once() -> None:
    # Given two doors whose requests hang: some for longer than the 6 s that are promised
    samples = [
        AgreementSample(1.0, in_hand=[(7.0, 3.0)], source="one"),
        AgreementSample(2.0, in_hand=[(8.0, 3.0), (5.0, 9.0)], source="one"),
        AgreementSample(2.0, in_hand=[(6.0, 1.0)], source="other"),
    ]
    found = judge_window(RESPONSE, 0.0, samples)

    # Then each of them counts once, though nothing was answered and nobody was refused
    assert (found.verdict, found.findings[0].unanswered) == (Verdict.BREACHED, 4.0)
    assert found.findings[0].of_answers.verdict is Verdict.NO_DATA

    # And who has an answer by the end of the window is counted by what it took.
    answered = AgreementSample(3.0, times={"response": [(5.5, 12.0)]}, source="one")
    found = judge_window(RESPONSE, 0.0, [*samples[:2], answered])
    assert (found.verdict, found.findings[0].unanswered) == (Verdict.WARNED, 0.0)


def test_without_any_request_there_is_nothing_to_judge() -> None:
    found = judge_window(RESPONSE, 0.0, [AgreementSample(1.0, refused=0.0, unanswered=0.0)])

    assert found.verdict is Verdict.NO_DATA


@pytest.mark.parametrize(
    ("served", "accepted", "waiting", "expected"),
    [
        (50, 50, 0, Verdict.MET),  # all that came was done
        (50, 200, 0, Verdict.BREACHED),
        (50, 50, 1000, Verdict.BREACHED),  # nothing more came, and a thousand waited
        (110, 200, 0, Verdict.WARNED),
        (130, 200, 0, Verdict.MET),
    ],
)
def test_low_throughput_needs_a_load_that_was_there(
    served: float, accepted: float, waiting: float, expected: Verdict
) -> None:
    samples = [
        AgreementSample(at_s, served=served, accepted=accepted, waiting=waiting)
        for at_s in (1.0, 2.0, 3.0, 4.0)
    ]

    found = judge_window(THROUGHPUT, 0.0, samples)

    assert found.verdict is expected
    assert found.findings[0].value == served


@pytest.mark.parametrize(
    ("loaded_s", "served", "expected"),
    [
        (0.5, 0, Verdict.MET),  # it has just come: nothing can be done yet
        (4.5, 40, Verdict.MET),  # too short to be told, whatever it was
        (5.0, 130, Verdict.MET),  # as quick as promised, as soon as there was something to do
        (5.0, 90, Verdict.BREACHED),
        (10.0, 90, Verdict.BREACHED),
    ],
)
def test_throughput_is_that_of_the_time_with_something_to_do(
    loaded_s: float, served: float, expected: Verdict
) -> None:
    """A load that begins within a window: before, nothing could have been served."""
    halves = [0.5 * (half + 1) for half in range(20)]
    samples = [
        AgreementSample(at_s, 0.5, accepted=0, served=0, waiting=0)
        if at_s <= 10.0 - loaded_s
        else AgreementSample(at_s, 0.5, accepted=100, served=served / 2, waiting=50)
        for at_s in halves
    ]

    found = judge_window(THROUGHPUT, 0.0, samples)

    assert found.verdict is expected


def test_unanswered_requests_count_as_offered_load() -> None:
    """Inside servers that hang nothing is served, refused or seen to wait."""
    hung = [
        AgreementSample(at_s, served=0, accepted=0, refused=0, waiting=0, came=150)
        for at_s in (1, 2)
    ]
    idle = [replace(one, came=0) for one in hung]

    found = judge_window(THROUGHPUT, 0.0, hung)

    assert found.verdict is Verdict.BREACHED
    assert found.findings[0].offered_per_s == 150
    assert judge_window(THROUGHPUT, 0.0, idle).verdict is Verdict.MET


def test_refused_requests_count_as_offered_load() -> None:
    """To refuse what one promised to serve is no way to keep the promise."""
    few = [AgreementSample(at_s, served=50, accepted=50, refused=0) for at_s in (1.0, 2.0)]
    shed = [AgreementSample(at_s, served=50, accepted=50, refused=90) for at_s in (1.0, 2.0)]

    assert judge_window(THROUGHPUT, 0.0, few).verdict is Verdict.MET
    assert judge_window(THROUGHPUT, 0.0, shed).verdict is Verdict.BREACHED


def test_the_rates_of_queues_that_are_sampled_together_add_up() -> None:
    samples = [
        AgreementSample(at_s, served=60, accepted=60) for at_s in (1.0, 2.0) for _queue in range(2)
    ]

    assert judge_window(THROUGHPUT, 0.0, samples).findings[0].value == 120.0


def test_the_oldest_the_least_free_and_the_refused_count() -> None:
    promised = agreement(
        '[metrics.oldest_age]\nbreach = "6s"\n[metrics.free_memory]\nbreach = 100\n'
        "[metrics.availability]\nbreach = 0.9"
    )
    samples = [
        AgreementSample(1.0, accepted=10, refused=0, oldest_age_s=5.0, free_memory_bytes=500),
        AgreementSample(2.0, accepted=70, refused=20, oldest_age_s=2.0, free_memory_bytes=90),
    ]

    found = judge_window(promised, 0.0, samples)

    assert [(one.value, one.verdict) for one in found.findings] == [
        (5.0, Verdict.WARNED),
        (90.0, Verdict.BREACHED),
        (0.8, Verdict.BREACHED),
    ]


def test_window_without_measurements_has_no_data() -> None:
    everything = agreement(
        '[metrics.wait_p99]\nbreach = "6s"\n[metrics.throughput]\nbreach = 100\n'
        '[metrics.oldest_age]\nbreach = "6s"\n[metrics.availability]\nbreach = 0.9\n'
        "[metrics.free_memory]\nbreach = 100"
    )

    found = judge_window(everything, 0.0, [AgreementSample(1.0)])

    assert {one.verdict for one in found.findings} == {Verdict.NO_DATA}
    assert found.verdict is Verdict.NO_DATA


def test_transition_is_reported_once_at_its_begin_and_end() -> None:
    violations = Violations(WAIT)
    waits_s = [1.0, 5.0, 5.5, 7.0, 9.0, None, 5.0, 1.0, 1.0]

    told = []
    for number, wait_s in enumerate(waits_s):
        times = {} if wait_s is None else {"wait": [(wait_s, 1.0)]}
        window = judge_window(WAIT, 10.0 * number, [AgreementSample(10.0 * number, times=times)])
        told += [(number, event) for event in violations.add_window(window)]

    assert [(number, event.turn) for number, event in told] == [
        (1, Transition.WARNED),
        (3, Transition.BREACHED),
        (6, Transition.EASED),
        (7, Transition.KEPT),
    ]
    breached, kept = told[1][1], told[3][1]
    assert (breached.begins_s, breached.ends_s, breached.windows_before) == (30.0, 40.0, 2)
    assert "wait_p90 was 7s" in breached.evidence
    assert kept.worst == 9.0
    assert violations.last_verdicts["wait_p90"] is Verdict.MET


def test_a_budget_is_used_up_by_windows_and_an_alarm_rings_on_both_spans() -> None:
    # A day of windows of a minute at 0.99: fourteen may be breached.
    promised = agreement(
        '[metrics.wait_p90]\nbreach = "6s"', 'window = "1m"\nperiod = "1d"\nobjective = 0.99'
    )
    history = AgreementHistory.of(promised)
    for minute in range(60):
        standing = history.add_window(promised, 60.0 * (minute + 1), Verdict.MET)
    assert (standing.budget_left, standing.alarm) == (1.0, None)

    for minute in range(60, 67):
        standing = history.add_window(promised, 60.0 * (minute + 1), Verdict.BREACHED)

    assert standing.budget_left == pytest.approx(1.0 - 7.0 / 14.4)
    # Seven of the last sixty, and all of the last five: 11.7 times too fast, and 100 times.
    assert standing.burn_rates["fast"] == pytest.approx((7 / 60 / 0.01, 100.0))
    assert standing.burn_hour == pytest.approx(7 / 60 / 0.01)
    # Seven of six hours: 1.9 times. Neither is fast enough on its long span.
    assert standing.burn_rates["slow"] == pytest.approx((7 / 360 / 0.01, 7 / 30 / 0.01))
    assert standing.alarm is None

    for minute in range(67, 69):
        standing = history.add_window(promised, 60.0 * (minute + 1), Verdict.BREACHED)
    assert standing.alarm == "fast"
    for minute in range(69, 75):
        standing = history.add_window(promised, 60.0 * (minute + 1), Verdict.MET)
    # Over: the short span says so at once.
    assert standing.alarm is None


numbers = st.none() | st.floats()
samples = st.lists(
    st.builds(
        AgreementSample,
        at_s=st.floats(),
        interval_s=st.floats(),
        accepted=numbers,
        served=numbers,
        refused=numbers,
        waiting=numbers,
        oldest_age_s=numbers,
        free_memory_bytes=numbers,
        times=st.dictionaries(
            st.sampled_from(["wait", "service", "response"]),
            st.lists(st.tuples(st.floats(), st.floats()), max_size=4),
        ),
    ),
    max_size=4,
)


@given(documents(), samples)
def test_valid_agreement_is_judged_for_any_samples(
    text: str, measured: list[AgreementSample]
) -> None:
    try:
        promised = parse_agreement(text, "")
    except AgreementInvalid:
        assume(False)
        raise
    violations, history = Violations(promised), AgreementHistory.of(promised)

    for begins_s, found in windows_of(promised, measured):
        window = judge_window(promised, begins_s, found)
        assert isinstance(window.evidence, list)
        violations.add_window(window)
        if abs(window.ends_s) < 1e15:
            assert history.add_window(promised, window.ends_s, window.verdict).budget_left <= 1.0


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(1, 100)), min_size=1))
def test_the_percentile_that_is_told_agrees_with_the_verdict(
    durations: list[tuple[float, int]],
) -> None:
    metric = WAIT.metrics[0]

    found = promise_finding(metric, [AgreementSample(1.0, times={"wait": durations})])

    assert found.value is not None
    expected = (
        Verdict.BREACHED
        if found.value >= metric.breach
        else Verdict.WARNED
        if found.value >= metric.warning
        else Verdict.MET
    )
    assert found.verdict is expected
