"""What is computed between two looks: percentiles, timelines, effects, the one thing to look at."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from tidegate.console import watch as packed
from tidegate.console.overview import DECISIONS_SHOWN, effect_of, explanations
from tidegate.console.schemas import AgreementState, Kind, Light, Point, ReplicaPoint, ServiceRow
from tidegate.console.snapshot import NO_WAITS, Snapshot, bucket_increments, percentiles
from tidegate.console.watch import (
    COARSE_POINTS,
    FINE_POINTS,
    ServiceTimeline,
    UserConnection,
    attention,
)
from tidegate.core.decisions import Decision
from tidegate.core.machines import FleetInfo, MachineInfo, MachineState
from tidegate.telemetry.meters import Histogram
from tidegate.telemetry.stats import ClusterStats, NodeStats, PhaseStats
from tidegate.telemetry.stats import make_durations as told


def test_percentiles_are_of_what_came_between_two_looks() -> None:
    histogram = Histogram()
    histogram.add(10.0, 1000)
    before = histogram.sparse()
    histogram.add(0.1, 94)
    histogram.add(1.0, 6)

    waits = percentiles([bucket_increments(before, histogram.sparse())])

    assert waits.p50_s is not None
    assert abs(waits.p50_s - 0.1) < 0.01
    assert waits.p95_s is not None
    assert abs(waits.p95_s - 1.0) < 0.1


def test_percentiles_are_none_without_deliveries() -> None:
    histogram = Histogram()
    histogram.add(1.0)
    assert percentiles([bucket_increments(histogram.sparse(), histogram.sparse())]) == NO_WAITS


def test_a_histogram_that_began_anew_counts_from_zero() -> None:
    old, new = Histogram(), Histogram()
    old.add(10.0, 1000)
    new.add(0.1, 3)
    assert sum(bucket_increments(old.sparse(), new.sparse()).values()) == 3


def test_a_timeline_is_fine_of_late_coarse_before_and_bounded() -> None:
    timeline = ServiceTimeline()
    replica = ReplicaPoint(number=1, state="serving", share=0.5)
    for second in range(5000):
        timeline.add(Point(at=float(second), waiting=second, replicas=[replica]))

    points = timeline.points()

    assert len(points) == FINE_POINTS + COARSE_POINTS
    assert points[-1].at == 4999.0
    assert points[-1].replicas == [replica]
    assert points[-2].replicas == [replica]
    assert points[0].at >= 4999.0 - 15 * 60 - 5
    assert [one.at for one in points] == sorted(one.at for one in points)


def test_of_very_many_replicas_only_the_newest_point_has_them() -> None:
    timeline = ServiceTimeline()
    replicas = [ReplicaPoint(number=number, state="serving") for number in range(1, 1001)]
    for second in range(3):
        timeline.add(Point(at=float(second), replicas=replicas))
    assert [len(one.replicas) for one in timeline.points()] == [0, 0, 1000]


def test_an_effect_is_what_the_figures_were_before_and_after() -> None:
    timeline = ServiceTimeline()
    for second in range(100):
        after = second >= 50
        timeline.add(
            Point(at=float(second), waiting=10 if after else 200, out_per_s=80.0 if after else 40.0)
        )

    points = timeline.points()
    assert effect_of(50.0, points, 60.0) is None
    effect = effect_of(50.0, points, 99.0)
    assert effect is not None
    assert "waiting 200 → 10" in effect
    assert "40.0/s → 80.0/s" in effect
    assert effect_of(-500.0, points, 99.0) == ""
    assert effect_of(99.0, points, 999.0) == "", "nobody has looked afterwards"


def test_an_effect_is_found_after_the_clock_was_set_back() -> None:
    late = [Point(at=float(second), waiting=7) for second in range(1000, 1010)]
    points = late + [Point(at=float(second), waiting=200) for second in range(40, 100)]

    assert effect_of(50.0, points, 99.0) == "waiting 200, as before; done 0.0/s, as before"


async def test_the_points_of_a_service_are_unpacked_once_for_all_its_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeline, now = ServiceTimeline(), time.time()
    replicas = [ReplicaPoint(number=number, state="serving") for number in range(4)]
    for ago_s in range(1000, 0, -1):
        timeline.add(Point(at=now - ago_s, replicas=replicas))
    decisions = [
        Decision(at=now - 2.0 * number, loop="queue", service="orders", law="load", rule="more")
        for number in range(DECISIONS_SHOWN)
    ]

    async def explain(_: str, count: int) -> list[Decision]:
        return decisions[:count]

    person = SimpleNamespace(
        watch=SimpleNamespace(timeline=lambda _: timeline), client=SimpleNamespace(explain=explain)
    )
    points = timeline.points()
    unpacked: list[bytes] = []
    real = packed._unpacked

    def counted(one: bytes) -> Point:
        unpacked.append(one)
        return real(one)

    monkeypatch.setattr(packed, "_unpacked", counted)

    found = await explanations(cast(UserConnection, person), (Kind.QUEUE, "orders"))

    assert len(found) == DECISIONS_SHOWN
    assert found[0].effect is None, "it is too early to say"
    assert found[50].effect
    assert len(unpacked) <= len(points)


def _row(name: str, **fields: object) -> ServiceRow:
    return ServiceRow(kind=Kind.QUEUE, name=name, light=Light.NONE, **fields)  # type: ignore[arg-type]


def _sight() -> Snapshot:
    sight = Snapshot()
    phases = PhaseStats(*[told(Histogram())] * 5)
    node = NodeStats(1, "n", "a", 1.0, 1, 1, 1, 1, 1.0, 0, told(Histogram()), 0.0, 0, 0, [], phases)
    sight.numbers = ClusterStats([node])
    return sight


def test_when_all_is_well_nothing_needs_attention() -> None:
    rows = [_row("a", waiting=5, consumers=1), _row("b", waiting=5, oldest_age_s=1.0)]
    assert attention(_sight(), rows, {}, {}) is None


def test_a_breach_goes_before_a_queue_without_consumers_before_a_warning() -> None:
    breached = ServiceRow(kind=Kind.QUEUE, name="a", light=Light.BREACHED, budget_left=0.1)
    lonely = _row("b", waiting=7, oldest_age_s=120.0)
    warned = ServiceRow(kind=Kind.QUEUE, name="c", light=Light.WARNED)
    state = AgreementState(name="s", light=Light.BREACHED, doing="one more replica")

    first = attention(_sight(), [warned, lonely, breached], {(Kind.QUEUE, "a"): state}, {})
    assert first is not None
    assert (first.service, first.light) == ("a", Light.BREACHED)
    assert "one more replica" in first.advice
    second = attention(_sight(), [warned, lonely], {}, {})
    assert second is not None
    assert second.service == "b"
    assert "7 messages there" in second.text
    third = attention(_sight(), [warned], {}, {})
    assert third is not None
    assert third.service == "c"


def test_dead_letters_that_grow_and_a_pause_that_fills_up_need_attention() -> None:
    dying = _row("a", dead=5, dead_queue="a.dead", consumers=1)
    found = attention(_sight(), [dying], {}, {"a": 2})
    assert found is not None
    assert "given up 3" in found.text
    assert attention(_sight(), [dying], {}, {"a": 5}) is None
    paused = attention(_sight(), [_row("p", paused=True, waiting=1000)], {}, {})
    assert paused is not None
    assert "paused" in paused.text


def test_a_machine_whose_node_is_silent_goes_before_all() -> None:
    sight = _sight()
    machine = MachineInfo(
        machine_id=3, provider="process", slots=1, state=MachineState.UP, member_id=9
    )
    sight.fleet = FleetInfo(machines=[machine])
    found = attention(sight, [], {}, {})
    assert found is not None
    assert "machine 3" in found.text
    assert attention(Snapshot(), [], {}, {}) is not None
