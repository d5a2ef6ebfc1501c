"""Waits from histories of clients: judged as the leader judges its own."""

from __future__ import annotations

from tidegate.agreements.document import parse_agreement
from tidegate.agreements.evaluation import Verdict
from tidegate.demo.history import HistoryEvent, judged_waits, waits

AGREEMENT = parse_agreement(
    'name = "orders"\nqueue = "orders"\nwindow = "10s"\n[metrics.wait_p99]\nbreach = "5s"\n',
    "a test",
)


def put(seq: int, at: float) -> HistoryEvent:
    return HistoryEvent(at, "p", "put", "ok", "orders", "p", seq)


def delivered(seq: int, at: float, *, again: bool = False) -> HistoryEvent:
    return HistoryEvent(at, "w", "deliver", "ok", "orders", "p", seq, redelivered=again)


def test_a_wait_is_from_the_confirmation_to_the_first_delivery() -> None:
    history = [
        put(1, 10.0),
        delivered(1, 12.5),
        # Given to somebody who died, and again: it was waited for once.
        delivered(1, 19.0, again=True),
        # Delivered before its confirmation was heard.
        delivered(2, 20.0),
        put(2, 20.1),
        # Nobody has heard of its confirmation: nobody can say.
        delivered(3, 21.0),
        HistoryEvent(22.0, "p", "put", "ok", "others", "p", 9),
    ]
    assert waits(history, "orders") == [(12.5, 2.5), (20.0, 0.0)]


def test_windows_are_judged_by_the_agreement() -> None:
    history = [put(1, 10.0), put(2, 11.0), put(3, 12.0), put(4, 31.0)]
    history += [delivered(1, 12.0), delivered(2, 24.0), delivered(3, 25.0), delivered(4, 35.5)]

    verdicts, longest_s = judged_waits(history, AGREEMENT, "orders")

    assert [one.verdict for one in verdicts] == [Verdict.MET, Verdict.BREACHED, Verdict.WARNED]
    assert longest_s == 13.0
