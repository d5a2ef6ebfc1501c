"""`tidegate simulate` and the simulated experiments, as people run them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.app import app
from tidegate.core.errors import InvalidValue
from tidegate_lab.papers.elastic import contest
from tidegate_lab.papers.elastic.simulated import SimulatedOptions, run_simulated


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "mine.csv"
    rows = "".join(f"{10 * row},{100 + 20 * row},{8}\n" for row in range(20))
    file.write_text(f"t_s,rate,service_ms\n{rows}")
    return file


def test_without_a_name_the_scenarios_are_listed() -> None:
    assert "flash-crowd" in _run()
    assert "figure-8" in json.loads(_run("--json"))


def test_a_load_of_ones_own_is_replayed_and_drawn(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = _run(str(trace), "--policy", "load,feed-forward", "--set", "max=6", "--out", str(out))
    assert "58,000 messages" in shown
    assert shown.count("\n") >= 4
    assert {file.name for file in out.iterdir()} == {
        "simulation.json",
        "simulation.png",
        "simulation.svg",
    }
    policies = [one["policy"] for one in json.loads((out / "simulation.json").read_text())]
    assert policies == ["load", "feed-forward"]


def test_the_same_seed_prints_the_same(trace: Path) -> None:
    first, second = (_run(str(trace), "--seed", "7", "--json") for _ in range(2))
    assert first == second
    assert json.loads(first)[0]["arrived"] > 50_000
    assert first != _run(str(trace), "--seed", "8", "--json")


def test_a_policy_that_there_is_not_is_refused(trace: Path) -> None:
    with pytest.raises(InvalidValue, match="no policy is called 'best'"):
        _run(str(trace), "--policy", "best")
    with pytest.raises(InvalidValue, match="no policy is called ''; there are: fixed"):
        _run(str(trace), "--policy", "")
    with pytest.raises(InvalidValue, match="key=value"):
        _run(str(trace), "--set", "max_load")


def test_a_trace_has_no_clients_and_the_policy_that_counts_them_says_so(trace: Path) -> None:
    note = "mine says what arrives and has no clients that come and go"
    for policy in ("clients", "all"):
        result = CliRunner().invoke(app, ["simulate", str(trace), "--policy", policy])
        assert note in result.stderr
    assert not CliRunner().invoke(app, ["simulate", str(trace), "--policy", "load"]).stderr
    assert not CliRunner().invoke(app, ["simulate", "clients"]).stderr


def test_the_papers_figures_make_a_page(tmp_path: Path) -> None:
    options = SimulatedOptions(only=["warm"], results=tmp_path, name="one")
    report = run_simulated(options)
    assert all(bar.met for bar in report.bars)
    above = [bar for bar in report.bars if "seconds above max_load" in bar.bar]
    assert [bar.figure for bar in above] == [0.0, 0.0]
    assert all(bar.beyond_the_issue == (": late" in bar.bar) for bar in report.bars)
    page = report.page.read_text()
    assert "figure 6" in page
    assert "7 s as printed" in page
    assert "data:image/png" in page
    assert json.loads((tmp_path / "elastic-queues" / "one" / "warm.json").read_text())["bars"]


def test_an_experiment_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no experiment is called 'warmer'"):
        SimulatedOptions(only=["warmer"]).experiments()
    with pytest.raises(ValueError, match="at least 20"):
        SimulatedOptions(traces=3).experiments()


@pytest.mark.parametrize("seed", [contest.FIRST_SEED + 5, contest.FIRST_SEED - 499])
def test_seeds_that_policies_are_tuned_on_are_no_unseen_ones(seed: int) -> None:
    with pytest.raises(ValueError, match="among those that policies are tuned on"):
        SimulatedOptions(seed=seed).experiments()
    SimulatedOptions(seed=contest.FIRST_SEED).experiments()
    SimulatedOptions(seed=90_000).experiments()


def test_another_seed_is_another_load_of_the_same_kind() -> None:
    ours = contest.feed_forward_grid()[0]
    first, second = (
        contest.scenario_of(contest.ContestRun(ours, 7, seed)) for seed in (30_000, 90_000)
    )
    assert first.name == second.name == contest.kind_of(7)
    assert first.trace != second.trace


def test_a_seed_is_for_what_is_simulated() -> None:
    result = CliRunner().invoke(app, ["lab", "run", "elastic-queues", "--seed", "90000"])
    assert result.exit_code == 2
    assert "--seed is for --simulate" in result.output + result.stderr


def test_both_halves_hold_every_kind_and_no_trace_is_in_both() -> None:
    tuning, unseen = contest.halves(40)
    assert not set(tuning) & set(unseen)
    assert sorted([*tuning, *unseen]) == list(range(40))
    for half in (tuning, unseen):
        assert {contest.kind_of(number) for number in half} == set(contest.KINDS)


def contest_means(traces: int) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Of ours, and of the others; the contest itself is `lab run elastic-queues --simulate`."""
    few = contest.halves(traces)[0]
    ours = contest.PolicyContender(contest.ScalingPolicy.FEED_FORWARD, {"warm": 1, "step_max": 4})
    load = contest.PolicyContender(contest.ScalingPolicy.LOAD, {"warm": 1, "inhibition_s": 1.0})
    length = contest.PolicyContender(
        contest.ScalingPolicy.LENGTH, {"warm": 1, "queue_length": 1000.0}
    )
    won, *lost = (
        contest.means_of([contest.score(contest.ContestRun(one, number)) for number in few])
        for one in (ours, load, length)
    )
    return won, lost


def test_on_few_traces_ours_is_late_for_less_time_with_no_more_machines() -> None:
    won, lost = contest_means(traces=10)
    for other in lost:
        assert won["above_s"] < other["above_s"]
        assert won["machine_s"] <= other["machine_s"]


@pytest.mark.only_with_all
def test_on_more_traces_ours_turns_back_less_often_too() -> None:
    won, lost = contest_means(traces=40)
    for other in lost:
        assert won["above_s"] < other["above_s"]
        assert won["machine_s"] <= other["machine_s"]
        assert won["reversals"] < other["reversals"]
