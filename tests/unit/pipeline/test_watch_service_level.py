"""Compliance that slides along, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from lake_of import NOON

from tidegate.agreements.document import Agreement, parse_agreement
from tidegate.agreements.evaluation import Verdict
from tidegate.pipeline.watch import ServiceLevelCarry, slide_windows

ORDERS = parse_agreement(
    'name = "orders"\nqueue = "orders"\nwindow = "1m"\nobjective = 0.9\nperiod = "10h"\n'
    '[metrics.wait_p99]\nbreach = "1s"\n',
    "orders.toml",
)


def minutes(*verdicts: Verdict, first: int = 0) -> list[tuple[str, datetime, Verdict]]:
    return [
        ("orders", NOON + timedelta(minutes=first + number), verdict)
        for number, verdict in enumerate(verdicts)
    ]


def slid(
    carried: ServiceLevelCarry,
    windows: list[tuple[str, datetime, Verdict]],
    agreement: Agreement = ORDERS,
) -> tuple[list[dict[str, Any]], ServiceLevelCarry]:
    table, after = slide_windows(carried, windows, [agreement])
    return table.to_pylist(), after


def test_counts_of_the_last_hour_and_the_budget() -> None:
    rows, _ = slid(
        ServiceLevelCarry(), minutes(*[Verdict.BREACHED] * 2, Verdict.NO_DATA, *[Verdict.MET] * 60)
    )

    third, last = rows[2], rows[-1]
    assert (third["met"], third["breached"], third["no_data"]) == (0, 2, 1)
    # Two of two judged windows, where one of ten is allowed.
    assert third["burn_hour"] == pytest.approx(10.0)
    # The breaches are over an hour ago.
    assert (last["met"], last["breached"], last["burn_hour"]) == (60, 0, 0.0)
    # Ten hours of minutes allow 60 breaches.
    assert last["budget_left"] == pytest.approx(1 - 2 / 60)
    assert {row["verdict"] for row in rows} == {"breached", "no_data", "met"}


def test_a_budget_of_an_hour_is_that_of_the_last_hour_and_not_of_the_clocks() -> None:
    hourly = replace(ORDERS, period_s=3600.0)
    # From half past noon: a breach, and as the clock strikes, half an hour of met windows.
    rows, _ = slid(ServiceLevelCarry(), minutes(Verdict.BREACHED, *[Verdict.MET] * 60), hourly)

    # An hour of minutes allows six.
    assert [row["budget_left"] for row in rows[:60]] == [pytest.approx(1 - 1 / 6)] * 60
    assert rows[60]["budget_left"] == 1.0


def test_the_worst_of_several_queues_decides() -> None:
    windows = [*minutes(Verdict.MET), *minutes(Verdict.WARNED), *minutes(Verdict.NO_DATA)]

    rows, _ = slid(ServiceLevelCarry(), windows)

    assert [(row["verdict"], row["warned"]) for row in rows] == [("warned", 1)]


def test_batches_one_by_one_say_what_one_batch_says() -> None:
    windows = minutes(*[Verdict.MET, Verdict.WARNED, Verdict.BREACHED, Verdict.BREACHED] * 40)
    at_once, last = slid(ServiceLevelCarry(), windows)

    carried, found = ServiceLevelCarry(), []
    for start in range(0, len(windows), 7):
        # As it is stored between batches.
        carried = msgspec.json.decode(msgspec.json.encode(carried), type=ServiceLevelCarry)
        rows, carried = slid(carried, windows[start : start + 7])
        found += rows

    assert found == at_once
    assert carried == last


def test_an_alarm_needs_more_than_a_first_breach() -> None:
    # Objective 0.99: the fast alarm wants 13.4 % of the hour, and of the last five minutes.
    strict = replace(ORDERS, objective=0.99, period_s=28 * 86400.0)

    rows, _ = slid(ServiceLevelCarry(), minutes(*[Verdict.BREACHED] * 12), strict)

    # 9 of 60 is the first count beyond 13.4 %.
    assert [row["alarm"] for row in rows].index("fast") == 8
    # Over once the last five minutes are good.
    _, after = slid(ServiceLevelCarry(), minutes(*[Verdict.BREACHED] * 12), strict)
    rows, _ = slid(after, minutes(*[Verdict.MET] * 6, first=12), strict)
    assert rows[0]["alarm"] == "fast"
    assert rows[-1]["alarm"] != "fast"


def test_a_changed_agreement_counts_anew() -> None:
    _, carried = slid(ServiceLevelCarry(), minutes(Verdict.BREACHED))

    same, _ = slid(carried, minutes(Verdict.MET, first=1), replace(ORDERS, source="elsewhere"))
    other, _ = slid(carried, minutes(Verdict.MET, first=1), replace(ORDERS, objective=0.8))

    assert (same[0]["breached"], other[0]["breached"]) == (1, 0)


def test_service_level_history_is_bounded() -> None:
    carried = ServiceLevelCarry()
    for day in range(5):
        _, carried = slid(carried, minutes(*[Verdict.MET] * 1440, first=1440 * day))

    history = carried.histories["orders"]
    assert len(history.minutes) <= 362
    assert len(history.hours) <= 12
