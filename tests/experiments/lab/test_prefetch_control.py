"""The prefetch experiments: whole in virtual time, and their scene with a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from missing_peer import skipped_where_missing
from typer.testing import CliRunner

from tidegate.cli.app import app
from tidegate.core.prefetch import ConsumerSample, PrefetchGoal, PrefetchModel
from tidegate.lab.prefetch.blurred import Blur, BlurredSensor
from tidegate.lab.prefetch.consumer_process import Note
from tidegate.lab.prefetch.plan import Plan
from tidegate.lab.prefetch.run import EXPERIMENTS, PrefetchOptions, run_prefetch
from tidegate.lab.prefetch.scene import Scene, scene_on
from tidegate.lab.prefetch.simulated import SimulatedScene
from tidegate.lab.prefetch.stage import Engine
from tidegate.lab.prefetch.track import Track, back_after_s


@pytest.mark.parametrize("engine", Engine)
def test_in_virtual_time_every_bar_is_met_and_the_page_shows_it(
    engine: Engine, tmp_path: Path
) -> None:
    options = PrefetchOptions(
        engine=engine, only=list(EXPERIMENTS), simulate=True, results=tmp_path, name="simulated"
    )
    report = run_prefetch(options)

    assert report.failed == {}
    assert [section.name for section in report.sections] == list(EXPERIMENTS)
    assert [bar.bar for bar in report.bars if not bar.met] == []
    page = report.page.read_text()
    assert "414 ± 216" in page
    assert "Every bar was met." in page


def test_a_node_hoards_nothing_for_a_handler_that_cannot_keep_up_and_is_soon_back() -> None:
    plan = Plan()
    scene = SimulatedScene(Engine.TIDEGATE, plan.setting)
    goal = PrefetchGoal(
        rate_per_s=400.0,
        settle_s=plan.disturbed_settle_s,
        sample_s=plan.disturbed_sample_s,
        adaptive=False,
        model=PrefetchModel(a=0.0, b=73.0),
    )
    with scene.consumer(1) as consumer:
        consumer.steer(goal)
        consumer.watch(goal.settle_s)
        # Half of what is wanted, for a minute.
        consumer.set_handler(1.0 / 200.0)
        saturated = consumer.watch(plan.saturated_s)
        consumer.set_handler(plan.setting.handler_s)
        rates = consumer.watch(goal.settle_s + 5.0).rates(goal.sample_s)

    # It may have 360. Six are enough for the target, and four for what the handler can do.
    assert max(note.prefetch for note in saturated.notes) <= 20
    handled = [point.handled_per_s for point in saturated.samples(goal.sample_s)]
    assert fmean(handled[10:]) == pytest.approx(200.0, rel=0.02)
    assert back_after_s(rates, 400.0, goal.sample_s, 0.05) <= 0.5 * goal.settle_s


def test_what_takes_a_quarter_of_an_hour_is_run_when_it_is_named() -> None:
    assert "fig6" not in PrefetchOptions().experiments()
    assert PrefetchOptions(only=["fig6"]).experiments() == ["fig6"]


def test_the_same_seed_gives_the_same_figures(tmp_path: Path) -> None:
    once, again = (
        run_prefetch(
            PrefetchOptions(simulate=True, quick=True, only=["fig3"], results=tmp_path, name=name)
        )
        for name in ("once", "again")
    )
    assert once.sections[0].data == again.sections[0].data


@pytest.fixture(scope="module", params=list(Engine))
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with (
        skipped_where_missing(),
        scene_on(request.param, Plan.quick().setting, frugal=True) as scene,
    ):
        yield scene


@pytest.mark.alone
def test_behind_the_network_more_prefetch_gives_more_and_the_loop_finds_the_target(
    scene: Scene,
) -> None:
    with scene.consumer(1) as consumer:
        one = fmean(consumer.watch(1.0).rates(0.5))
        consumer.set_prefetch(4)
        four = fmean(consumer.watch(1.0).rates(0.5))
        # A round trip of 24 ms and a handler of 4 ms: 36 msg/s at most for each.
        assert 2.0 * one < four < 4.0 * 36.0

        target = 0.7 * four
        model = PrefetchModel(a=0.0, b=four / 4.0, sample_s=0.2)
        goal = PrefetchGoal(
            rate_per_s=target, settle_s=4.0, sample_s=0.2, adaptive=False, model=model
        )
        scene.steer(consumer, goal)
        deadline = time.monotonic() + 30.0
        while abs(fmean(consumer.watch(2.0).rates(1.0)) / target - 1.0) > 0.1:
            assert time.monotonic() < deadline, consumer.track.steps[-5:]
        scene.steer_no_more()


@pytest.mark.alone
def test_publishers_pause_on_request_and_what_waits_can_be_dropped(scene: Scene) -> None:
    published = scene.publish(0.0)
    assert scene.publish(0.0) == published
    scene.purge()
    # What was on its way when they paused may have come since.
    assert scene.waiting() < 50
    scene.publish(1.0)
    scene.wait_for_messages(100)


def test_a_wrong_engine_and_a_wrong_part_are_said(tmp_path: Path) -> None:
    runner = CliRunner()
    wrong = runner.invoke(app, ["lab", "run", "prefetch-control", "--engine", "kafka"])
    assert wrong.exit_code == 2
    assert "rabbitmq, tidegate" in " ".join(wrong.output.split())
    wrong = runner.invoke(app, ["lab", "run", "prefetch-control", "--only", "fig4"])
    assert wrong.exit_code == 2
    assert "fig4" in wrong.output


def _track(rates: list[float], every_s: float = 0.1) -> Track:
    delivered, notes = 0.0, [Note(0.0, 0, 0, 0, 5)]
    for number, rate in enumerate(rates, start=1):
        delivered += rate * every_s
        notes.append(Note(number * every_s, round(delivered), round(delivered), 2, 5))
    return Track(notes)


def test_notes_are_cut_into_whole_samples() -> None:
    track = _track([100.0] * 10 + [200.0] * 10 + [300.0] * 5)
    assert track.rates(1.0) == pytest.approx([100.0, 200.0])
    assert [point.held for point in track.samples(0.5)] == [2.0] * 5
    assert track.since(0.95).rates(1.0) == pytest.approx([200.0])


def test_back_means_that_the_mean_of_five_is_within_and_stays_for_a_while() -> None:
    assert back_after_s([400.0] * 20, 400.0, 1.0, 0.05) == 0.0
    # Means of five that end at samples 5, 6, 7 and 8 still have too much of the dip in them.
    assert back_after_s([200.0] * 4 + [400.0] * 16, 400.0, 1.0, 0.05) == 9.0
    # Never, and not just in passing.
    assert back_after_s([300.0] * 20, 400.0, 1.0, 0.05) == 21.0
    assert back_after_s([100.0 + 30.0 * k for k in range(20)], 400.0, 1.0, 0.05) == 21.0
    # What happens long after is another matter.
    assert back_after_s([400.0] * 15 + [100.0] * 5, 400.0, 1.0, 0.05) == 0.0


def test_a_blurred_sensor_loses_delays_and_blurs() -> None:
    def sample(at: float) -> ConsumerSample:
        return ConsumerSample(at=at, interval_s=1.0, arrived_per_s=100.0 * at, prefetch=5.0)

    late = BlurredSensor(Blur(late_samples=2))
    seen = [late.seen(sample(float(at))) for at in range(1, 6)]
    assert [one.arrived_per_s for one in seen if one] == [100.0, 100.0, 100.0, 200.0, 300.0]
    assert [one.at for one in seen if one] == [1.0, 2.0, 3.0, 4.0, 5.0]

    lossy = BlurredSensor(Blur(lost=0.2))
    lost = sum(lossy.seen(sample(1.0)) is None for _ in range(1000))
    assert 150 < lost < 250

    noisy = BlurredSensor(Blur(noise=0.1))
    rates = [one.arrived_per_s for _ in range(1000) if (one := noisy.seen(sample(1.0)))]
    assert fmean(rates) == pytest.approx(100.0, abs=2.0)
    assert max(rates) > 115.0
