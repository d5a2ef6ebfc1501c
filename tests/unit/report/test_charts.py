"""Charts of next to no data: what is there is drawn, and its axes can be read."""

from __future__ import annotations

import math
from datetime import timedelta

import matplotlib as mpl
import pytest
from knowledge_of import EVENING, NOON, KnowledgeOf
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tidegate.report.capacity import forecasts
from tidegate.report.charts import STYLE, WIDTH_IN, Chart, days, draw_into, time_axis
from tidegate.report.queues import (
    BalanceWindow,
    RequestPhase,
    WaitWindow,
    balance_chart,
    phase_chart,
    queue_sections,
    wait_chart,
)
from tidegate.telemetry.learned import LearnedModels

WAIT = wait_chart([WaitWindow(NOON, 60.0, 10, 0.1, 0.2, 0.3)])
BALANCE = balance_chart([BalanceWindow(NOON, 10.0, 8.0, 120.0, "flooded")], 60.0)


def drawn(chart: Chart) -> Axes:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, chart.height_in))
        FigureCanvasAgg(figure)
        return draw_into(figure, chart)


@pytest.mark.parametrize("chart", [WAIT, BALANCE], ids=lambda chart: chart.title)
def test_a_single_window_is_a_mark_amid_minutes_that_can_be_read(chart: Chart) -> None:
    axes = drawn(chart)
    (noon,) = days([NOON])
    begins, ends = axes.get_xlim()
    assert begins < noon < ends
    assert (ends - begins) * 86400 == pytest.approx(240.0)
    assert {line.get_marker() for line in axes.lines} == {"o"}
    formatter = axes.xaxis.get_major_formatter()
    ticks = [formatter(tick) for tick in axes.get_xticks()]
    assert ticks == ["11:58", "11:59", "12:00", "12:01", "12:02"]


def test_the_state_of_a_single_window_is_seen_as_wide_as_it_was() -> None:
    ribbon = drawn(BALANCE).collections[-1].get_paths()[0].get_extents()
    assert ribbon.width * 86400 == pytest.approx(60.0, abs=0.01)


def test_years_have_as_few_ticks_as_hours() -> None:
    axes = Figure().add_subplot()
    axes.plot(days([NOON, NOON + timedelta(days=3000)]), [1.0, 2.0])
    time_axis(axes)
    assert 3 <= len(axes.get_xticks()) <= 6


def test_names_of_requests_have_room_and_the_rarest_are_left_to_the_table() -> None:
    verbs = ["all", "ConsumerPrefetch", "Put", "Get", "Peek", "AnswerOf" * 9, "Status", "Move", "x"]
    phases = [RequestPhase(verb, "store", 10.0, 5.0, None, None, 1.0) for verb in verbs]
    chart = phase_chart(phases, verbs)
    axes = drawn(chart)
    labels = axes.get_yticklabels()
    named = [label.get_text() for label in reversed(labels)]
    assert named[:2] == ["all", "ConsumerPrefetch"]
    assert named[-1] == "Status"
    assert len(named) == 7
    assert all(label.get_window_extent().x0 >= 0 for label in labels)
    # The bars keep most of the room.
    assert axes.get_position().width > 0.5
    assert chart.sentence.endswith("2 rarer requests are in the numbers below.")
    assert {row[0] for row in chart.table.rows} == set(verbs)


def test_a_forecast_refused_for_want_of_history_is_a_sentence_and_no_chart(
    knowledge_of: KnowledgeOf,
) -> None:
    why = "5m of history is too little: the last value is repeated"
    # A walk could be judged, and has the baseline's bounds; of the young nothing is known.
    bounds = {"walk": 3.0, "young": math.nan}
    knowledge_of.add(
        "forecast",
        [
            {
                "queue": queue,
                "at": EVENING + timedelta(minutes=minute),
                "expected_per_s": 5.0,
                "low_per_s": 5.0 - around,
                "high_per_s": 5.0 + around,
                "baseline_per_s": 5.0,
                "accepted": False,
            }
            for queue, around in bounds.items()
            for minute in range(60)
        ],
    )
    knowledge_of.add_model("forecast", "walk", accepted=False, reason="not better")
    knowledge_of.add_model("forecast", "young", accepted=False, reason=why)
    knowledge_of.write()

    charts, refused = forecasts(LearnedModels(knowledge_of.folder), list(bounds))

    assert list(charts) == ["walk"]
    assert refused == {"young": f"No forecast yet: {why}."}
    (section,) = queue_sections(LearnedModels(knowledge_of.folder), [("young", 10.0)])
    assert not section.charts
    assert section.notes == [f"No forecast yet: {why}."]
