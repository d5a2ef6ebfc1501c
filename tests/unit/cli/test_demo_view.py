"""The demo's view and its sentences, from moments that nobody has to wait for."""

from __future__ import annotations

import dataclasses
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from tidegate.cli.output import Output
from tidegate.cli.status import OverviewRow
from tidegate.console.schemas import Kind, Light, Overview, ServiceRow
from tidegate.core.machines import FleetInfo, MachineInfo, MachineState
from tidegate.demo.evidence import (
    DemoHistories,
    DemoSnapshot,
    MetricHistory,
    ReplicaView,
    WindowCounts,
    WorkerView,
    changes,
    compliance_since,
)
from tidegate.demo.scenario import demo_scenario
from tidegate.demo.view import DemoView


def machine(number: int, state: MachineState) -> MachineInfo:
    return MachineInfo(machine_id=number, provider="process", slots=2, state=state)


def moment(replicas: int, *machines: MachineInfo, light: Light = Light.MET) -> DemoSnapshot:
    orders = ServiceRow(
        kind=Kind.QUEUE, name="orders", light=light, budget_left=1.0, in_per_s=150.0,
        replicas=replicas, replicas_wanted=replicas,
    )  # fmt: skip
    archive = ServiceRow(kind=Kind.QUEUE, name="archive", light=Light.NONE, in_per_s=46.0)
    rows = [orders, archive]
    glance = OverviewRow(
        overview=Overview(at=0.0, attention=None, services=rows, nodes=3),
        rows=rows,
        prefetch={"orders": 32},
        fleet=FleetInfo(leader=1, machines=list(machines)),
        decisions=[],
    )
    return DemoSnapshot(
        glance=glance,
        replicas=[
            ReplicaView(number, "serving", 1, 1 / replicas, 3, 40.0, 8, True)
            for number in range(1, replicas + 1)
        ],
        steered=[WorkerView("archive-worker", 4, 40.0, 40.0, 101.0)],
        unacknowledged={},
        evidence="wait_p99 was 9s",
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 45)])
def test_on_a_terminal_it_draws_what_fits(tmp_path: Path, width: int, height: int) -> None:
    told = demo_scenario()
    output = Output()
    drawn = io.StringIO()
    output.console = Console(width=width, height=height, force_terminal=True, file=drawn)
    output.on_terminal = True
    view = DemoView(output, io.StringIO(), told.chapters)
    now, course = moment(4, machine(1, MachineState.UP)), MetricHistory()
    course.add(now)

    with view.showing():
        view.begin(told.burst)
        for number in range(20):
            view.tell(f"something happens, {number}")
        view.show(now, course, DemoHistories(tmp_path))

    text = drawn.getvalue()
    assert "something happens, 19" in text
    for expected in ("Tidegate demo", "a burst", "orders, replica 4", "archive-worker", "25%"):
        assert expected in text, expected


def test_in_a_pipe_it_tells_lines() -> None:
    told = demo_scenario(0.5)
    pipe = io.StringIO()
    view = DemoView(Output(as_json=True), pipe, told.chapters)

    view.begin(told.kill)
    view.tell("\x1b[2Jnasty")

    first, second = pipe.getvalue().splitlines()
    assert "4. a machine is killed" in first
    assert "\x1b" not in second


def test_in_a_pipe_lines_stand_in_the_order_of_time_and_say_nothing_empty(tmp_path: Path) -> None:
    pipe, now_s = io.StringIO(), 100.0
    view = DemoView(Output(as_json=True), pipe, demo_scenario().chapters, lambda: now_s)
    nothing = dataclasses.replace(moment(1), replicas=[], steered=[])

    view.show(nothing, MetricHistory(), DemoHistories(tmp_path))
    # In whole seconds this would be three of them.
    now_s += 2.6
    view.tell("something happens")
    now_s += 0.1
    view.show(moment(2), MetricHistory(), DemoHistories(tmp_path))

    lines = pipe.getvalue().splitlines()
    times = [float(line.partition(" s  ")[0]) for line in lines]
    assert times == sorted(times)
    assert len(times) == 3
    assert "shares" not in lines[0]
    assert "with shares 50% 50% and prefetch 8 8; archive-worker does 40/s" in lines[2]


def test_the_lake_is_asked_about_the_windows_that_the_leader_gave_account_of(
    tmp_path: Path,
) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    told = ["breached", "met", "warned", "met"]
    table = pa.table(
        {
            "agreement": ["orders"] * len(told),
            "window": pa.array(
                [noon + timedelta(seconds=5 * number) for number in range(len(told))],
                pa.timestamp("us", "UTC"),
            ),
            "verdict": told,
        }
    )
    (tmp_path / "compliance").mkdir()
    pq.write_table(table, tmp_path / "compliance" / "part.parquet")

    # One window was over before the leader gave its first account.
    found = compliance_since(tmp_path, noon + timedelta(seconds=5))

    assert found == {"orders": (2, 1, 0)}


def test_demo_view_reports_each_change_once() -> None:
    calm = moment(1, machine(1, MachineState.UP), machine(2, MachineState.WARM))
    busy = moment(3, machine(1, MachineState.UP), machine(2, MachineState.UP),
                  machine(3, MachineState.BOOTING), light=Light.BREACHED)  # fmt: skip

    assert list(changes(calm, busy)) == [
        "3 replicas of orders at work",
        "machine 2 was warm, and is at work",
        "machine 3 boots",
        "the agreement of orders is breached: wait_p99 was 9s",
    ]
    assert list(changes(busy, busy)) == []


def test_an_objective_allows_some_breaches_and_no_windows_are_no_proof() -> None:
    assert WindowCounts(met=18, warned=1, breached=1, allowed=0.1).are_kept
    assert not WindowCounts(met=17, warned=0, breached=3, allowed=0.1).are_kept
    assert not WindowCounts(met=0, warned=0, breached=0, allowed=0.1).are_kept
