"""Comparison of the controlled prefetch with fixed ones: speed, held messages and fair shares.

Speed and held messages are measured with one consumer on a queue that is never empty. All
contenders take turns for several rounds, so that other load on the machine affects them alike.

Fair shares are measured on a queue with a fixed number of messages and no publishers, which a
consumer could hoard. One consumer works and a second one joins. The second has its fair share when
it handles at least 80 % of the first one's rate. If the queue is empty before, it never had it.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec

from tidegate.core.prefetch import PrefetchGoal
from tidegate.lab.bench.bars import Bar
from tidegate.lab.prefetch.bench import Bench
from tidegate.lab.prefetch.plan import PREFETCH_MAX
from tidegate.lab.prefetch.publishers_process import PAYLOAD_BYTES
from tidegate.lab.prefetch.stage import Stage, StagedConsumer
from tidegate.lab.prefetch.track import Track
from tidegate.lab.report.figures import draw_bars
from tidegate.lab.report.section import Drawing, Section
from tidegate.report.chart import Table

# More than the length limit of the queue, so in effect unlimited.
UNLIMITED = 65_535
FIXED = (1, 10, 250, UNLIMITED)
CONTROLLED = "controlled"
START = 10
# The required speed relative to the best; 1 % is the difference between equal rounds.
AS_FAST = 0.99
LESS_HELD = 10.0
FAIR = 0.8
FAIR_WINDOW_S = 0.5
JOIN_AFTER_S = 1.0


class Outcome(msgspec.Struct, frozen=True):
    """The result of one contender."""

    name: str
    handled_per_s: float
    # The fraction of the time in which the handler was busy.
    busy: float
    held: float
    held_bytes: float
    # Seconds until the second consumer had its fair share; None if it never had it.
    fair_after_s: float | None
    second_handled: int
    first_handled: int


def contest_section(bench: Bench, folder: Path) -> Section:
    """Measure all contenders in turn."""
    plan = bench.plan
    goal = PrefetchGoal(
        settle_s=plan.disturbed_settle_s,
        sample_s=plan.disturbed_sample_s,
        high=PREFETCH_MAX,
        adaptive=False,
        model=bench.model(),
    )
    ways = [_Way(_name(prefetch), prefetch, None) for prefetch in FIXED]
    ways.append(_Way(CONTROLLED, START, goal))
    # In turn, so that other load on the machine affects all contenders alike.
    alone = [[_alone(bench, way) for way in ways] for _ in range(plan.contest_rounds)]
    outcomes = [
        _outcome(bench, way, [one[place] for one in alone]) for place, way in enumerate(ways)
    ]
    _draw(outcomes, folder / "contest.png")
    *fixed, controlled = outcomes
    best = max(one.handled_per_s for one in fixed)
    greedy = min(one.held_bytes for one in fixed if one.name in (_name(250), _name(UNLIMITED)))
    return Section(
        name="contest",
        title="Against fixed prefetches",
        source="Sections 2 and 3.1: keep consumers busy, and messages in the broker",
        paper="No comparison is made.",
        ours=(
            f"Keep up handles {controlled.handled_per_s:.0f} msg/s and holds "
            f"{controlled.held_bytes:.0f} B; the best fixed one handles {best:.0f} msg/s, and the "
            f"greedy ones hold {greedy:,.0f} B and more."
        ),
        drawings=[Drawing("contest.png", "Handled a second, and messages held in the consumer.")],
        tables=[
            Table(
                f"Alone at a full queue, and two at {plan.shared_messages} messages",
                (
                    *("prefetch", "handled/s", "busy", "ms for each", "held", "bytes held"),
                    *("second has its share after", "handled by first and second"),
                ),
                [
                    (
                        one.name,
                        f"{one.handled_per_s:.0f}",
                        f"{one.busy:.1%}",
                        f"{1e3 * one.busy / max(one.handled_per_s, 1e-9):.3f}",
                        f"{one.held:.1f}",
                        f"{one.held_bytes:,.0f}",
                        "never" if one.fair_after_s is None else f"{one.fair_after_s:.1f} s",
                        f"{one.first_handled} and {one.second_handled}",
                    )
                    for one in outcomes
                ],
            )
        ],
        bars=[
            Bar(
                "controlled as fast as the best fixed one (but for 1 %, by which rounds differ)",
                controlled.handled_per_s / best,
                AS_FAST,
                "×",
            ),
            Bar(
                "greedy ones hold more than the controlled one",
                greedy / max(controlled.held_bytes, 1.0),
                LESS_HELD,
                "×",
            ),
            Bar(
                "controlled: a second consumer has its share",
                controlled.fair_after_s if controlled.fair_after_s is not None else math.inf,
                plan.disturbed_settle_s,
                "s",
                at_most=True,
                beyond_the_issue=True,
            ),
        ],
        notes=[
            "Held are messages that lie unbegun in the consumer, 256 bytes each; what a client "
            "library keeps around each of them comes on top.",
            "Controlled: keep up, with as many messages at hand as the handler needs to be busy.",
            "Busy is the part of the time in which the handler was at work, and ms for each what "
            "it took for a message.",
            f"Unlimited is a prefetch of {UNLIMITED:,}, more than the queue may have.",
        ],
        data={one.name: msgspec.to_builtins(one) for one in outcomes},
    )


def _name(prefetch: int) -> str:
    return "unlimited" if prefetch == UNLIMITED else str(prefetch)


class _Way(NamedTuple):
    name: str
    prefetch: int
    # None means that the prefetch is fixed.
    goal: PrefetchGoal | None


def _alone(bench: Bench, way: _Way) -> Track:
    bench.progress(f"prefetch {way.name} …")
    scene, plan = bench.scene, bench.plan
    try:
        scene.publish(1.0)
        scene.wait_for_messages()
        with scene.consumer(way.prefetch) as consumer:
            if way.goal is not None:
                scene.steer(consumer, way.goal)
                consumer.watch(plan.disturbed_settle_s)
            consumer.watch(plan.contest_s / 3)
            return consumer.watch(plan.contest_s)
    finally:
        scene.steer_no_more()


def _outcome(bench: Bench, way: _Way, alone: list[Track]) -> Outcome:
    bench.progress(f"two with prefetch {way.name} …")
    scene = bench.scene
    try:
        scene.publish(1.0)
        _leave(scene, bench.plan.shared_messages)
        first, second = _together(bench, way)
    finally:
        scene.steer_no_more()
        scene.publish(1.0)
    held = fmean(note.held for track in alone for note in track.notes)
    joined_at = second.began_at
    return Outcome(
        name=way.name,
        handled_per_s=fmean(_handled(track) / track.seconds for track in alone),
        busy=fmean(_busy_s(track) / track.seconds for track in alone),
        held=held,
        held_bytes=held * PAYLOAD_BYTES,
        fair_after_s=_fair_after_s(first, second, joined_at),
        first_handled=_handled(first.since(joined_at)),
        second_handled=_handled(second),
    )


def _together(bench: Bench, way: _Way) -> tuple[Track, Track]:
    """Run a consumer, let a second one join, and return the tracks of both."""
    scene = bench.scene
    with scene.consumer(way.prefetch) as first:
        if way.goal is not None:
            scene.steer(first, way.goal)
        first.watch(JOIN_AFTER_S)
        with scene.consumer(way.prefetch) as second:
            if way.goal is not None:
                scene.steer(second, way.goal)
            # Until all messages are handled or the time is up, as with prefetch 1.
            end_s = scene.now() + bench.plan.disturbed_settle_s
            while scene.now() < end_s and _is_at_work(first, second):
                pass
            return first.track, second.track


def _is_at_work(first: StagedConsumer, second: StagedConsumer) -> bool:
    """Watch both consumers for a while, and return whether any message was handled."""
    began_at = first.watch(FAIR_WINDOW_S).began_at
    second.watch(0.0)
    return _handled(first.track.since(began_at)) + _handled(second.track.since(began_at)) > 0


def _leave(scene: Stage, messages: int) -> None:
    """Leave about `messages` messages in the queue, and pause the publishers."""
    scene.publish(0.0)
    scene.purge()
    before = scene.publish(1.0)
    while scene.publish(1.0) - before < messages:
        scene.pause(0.02)
    scene.publish(0.0)


def _fair_after_s(first: Track, second: Track, joined_at: float) -> float | None:
    pairs = zip(
        first.since(joined_at).samples(FAIR_WINDOW_S),
        second.since(joined_at).samples(FAIR_WINDOW_S),
        strict=False,
    )
    for ours, theirs in pairs:
        if ours.handled_per_s > 0.0 and theirs.handled_per_s >= FAIR * ours.handled_per_s:
            return theirs.at_s
    return None


def _handled(track: Track) -> int:
    return track.notes[-1].handled - track.notes[0].handled if track.notes else 0


def _busy_s(track: Track) -> float:
    return track.notes[-1].busy_s - track.notes[0].busy_s if track.notes else 0.0


def _draw(outcomes: list[Outcome], file: Path) -> None:
    held = "Held in the consumer, messages"
    draw_bars(
        {
            "Handled, msg/s": {one.name: one.handled_per_s for one in outcomes},
            held: {one.name: one.held for one in outcomes},
        },
        file,
        logarithmic=[held],
    )
