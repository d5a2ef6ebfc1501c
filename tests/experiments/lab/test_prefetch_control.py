"""The prefetch experiments: whole in virtual time, and their scene with a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from missing_peer import skipped_where_missing
from typer.testing import CliRunner
from waiting import eventually

from tidegate.cli.app import app
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate_lab.papers.prefetch.plan import BrokerKind, PrefetchPlan, back_after_s
from tidegate_lab.papers.prefetch.run import EXPERIMENTS, PrefetchOptions, run_prefetch
from tidegate_lab.papers.prefetch.scene import ProcessTestbed, process_testbed
from tidegate_lab.papers.prefetch.simulated import SimulatedTestbed


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", BrokerKind)
def test_in_virtual_time_every_bar_is_met_and_the_page_shows_it(
    engine: BrokerKind, tmp_path: Path
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
    plan = PrefetchPlan()
    scene = SimulatedTestbed(BrokerKind.TIDEGATE, plan.setting)
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


def test_long_experiment_runs_only_when_named() -> None:
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


@pytest.fixture(scope="module", params=list(BrokerKind))
def scene(request: pytest.FixtureRequest) -> Iterator[ProcessTestbed]:
    with (
        skipped_where_missing(),
        process_testbed(request.param, PrefetchPlan.quick().setting, frugal=True) as scene,
    ):
        yield scene


def test_behind_the_network_more_prefetch_gives_more_and_the_loop_lowers_what_is_too_much(
    scene: ProcessTestbed,
) -> None:
    # A round trip of 24 ms and a handler of 4 ms: 36 msg/s at most for each unit of prefetch.
    unit_per_s = 36.0
    with scene.consumer(1) as consumer:

        def rate() -> float:
            return fmean(consumer.watch(1.0).rates(0.5))

        consumer.set_prefetch(8)
        # Prefetch 1 cannot give so much on any machine.
        eventually(lambda: rate() > 1.5 * unit_per_s)

        model = PrefetchModel(a=0.0, b=unit_per_s, sample_s=0.2)
        goal = PrefetchGoal(
            rate_per_s=unit_per_s, settle_s=4.0, sample_s=0.2, adaptive=False, model=model
        )
        scene.steer(consumer, goal)
        eventually(lambda: consumer.watch(0.5).notes[-1].prefetch < 8)
        scene.steer_no_more()


def test_publishers_pause_on_request_and_what_waits_can_be_dropped(scene: ProcessTestbed) -> None:
    published = scene.publish(0.0)
    assert scene.publish(0.0) == published

    def is_empty() -> bool:
        # What was on its way when they paused may yet come.
        scene.purge()
        return scene.waiting() == 0

    eventually(is_empty)
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
