"""Beyond the paper: the policy feed-forward against "load" and "length" on hundreds of traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.core.topology import ScalingPolicy
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import draw_scatter, name_of
from tidegate.simulation.traces import KINDS
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.elastic import contest
from tidegate_lab.papers.elastic.contest import Score, TunedContender
from tidegate_lab.papers.telesto.phases import estimate
from tidegate_lab.report import Drawing, ExperimentSection

OURS = ScalingPolicy.FEED_FORWARD.value
OTHERS = (ScalingPolicy.LOAD.value, ScalingPolicy.LENGTH.value)
FIGURES = {
    "above_s": "seconds above max_load",
    "machine_s": "machine-seconds",
    "reversals": "reversals",
}
# Both halves must contain each kind twice.
TRACES_MIN = 20


def traces_section(
    traces: int, first_seed: int, folder: Path, progress: contest.Progress
) -> ExperimentSection:
    """Tune the policies on one half of the traces, and compare them on the other half.

    The tuning half always begins at the same seed; the unseen half begins at `first_seed`.
    """
    tuning, unseen = contest.halves(traces)
    with contest.arena(progress) as arena:
        tuned = _tuned(arena, tuning)
        scores = {}
        for name, found in tuned.items():
            progress(f"{name} on the {len(unseen)} unseen traces …")
            scores[name] = arena.scores(found.contender, unseen, first_seed)
    draw_scatter(
        {name: [(one.machine_s, one.above_s) for one in of] for name, of in scores.items()},
        folder / "traces.png",
        title=f"{len(unseen)} unseen traces of half an hour, each a dot",
    )
    return _section(tuned, scores, tuning, unseen, first_seed)


def _tuned(arena: contest.ContestRunner, tuning: Sequence[int]) -> dict[str, TunedContender]:
    tuned = {
        ScalingPolicy.LOAD.value: arena.tune(contest.load_grid(), tuning),
        ScalingPolicy.LENGTH.value: arena.tune(contest.length_grid(), tuning),
    }
    theirs = [one.contender for one in tuned.values()]

    def allowed(means: Mapping[str, float], numbers: Sequence[int]) -> bool:
        others = (contest.means_of(arena.scores(one, numbers)) for one in theirs)
        return all(
            means[figure] <= margin * other[figure]
            for other in others
            for figure, margin in contest.MARGINS.items()
        )

    tuned[OURS] = arena.tune(contest.feed_forward_grid(), tuning, allowed)
    return tuned


def _section(
    tuned: Mapping[str, TunedContender],
    scores: Mapping[str, Sequence[Score]],
    tuning: Sequence[int],
    unseen: Sequence[int],
    first_seed: int,
) -> ExperimentSection:
    means = {name: contest.means_of(of) for name, of in scores.items()}
    bars = [
        _paired_bar(scores, other, figure, label)
        for other in OTHERS
        for figure, label in FIGURES.items()
    ]
    ours, load, length = means[OURS], means[OTHERS[0]], means[OTHERS[1]]
    return ExperimentSection(
        name="traces",
        title=f"Beyond the papers: {len(tuning) + len(unseen)} traces, three policies",
        source=(
            f"Ramps, steps, bursts, diurnal loads and flash crowds of {contest.TRACE_S:.0f} s, "
            f"seeded; tuned on {len(tuning)} with seeds from {contest.FIRST_SEED} on, these "
            f"figures from {len(unseen)} others, with seeds from {first_seed} on"
        ),
        theirs="Other policies, simulated here",
        paper=(
            f"load (the paper's): {load['above_s']:.0f} s above max_load, "
            f"{load['machine_s']:.0f} machine-s, {load['reversals']:.2f} reversals a trace. "
            f"length (KEDA-like): {length['above_s']:.0f} s, {length['machine_s']:.0f} machine-s, "
            f"{length['reversals']:.2f} reversals."
        ),
        ours=(
            f"feed-forward: {ours['above_s']:.0f} s above max_load, {ours['machine_s']:.0f} "
            f"machine-s, {ours['reversals']:.2f} reversals a trace. {_in_words(bars)}"
        ),
        drawings=[
            Drawing(
                "traces.png",
                "Left and low is better: machine-seconds paid against seconds above max_load "
                "(logarithmic above 10 s). Diamonds are means.",
            )
        ],
        tables=[
            _means_table(scores),
            _difference_table(scores),
            _kinds_table(scores),
            *(_tried_table(name, one) for name, one in tuned.items()),
        ],
        bars=bars,
        notes=[
            "The paper has no such experiment: its policy and a KEDA-like one were simulated as "
            "ours was.",
            "Judged trace by trace: the mean of the differences on the same trace. One whose 95 % "
            "interval includes 0 is not distinguishable from chance, and does not count as met.",
            "Every policy runs in the same world: replicas of 100 msg/s, two on a machine, boots "
            "of 96.9 s with a deviation of a fifth, Poisson arrivals, at most 16 replicas, "
            "max_load 200.",
            "length polls every 30 s and cools down for 300 s, as KEDA and the Kubernetes "
            "autoscaler do; its replicas compete for one queue, so that it needs no shares, and "
            "one that is to go is gone when it has done what it had in hand.",
            f"Objective of every search: machine-seconds + {contest.SECOND_ABOVE:g} × seconds "
            "above max_load, on the tuning half; first round on a fifth of it, the best two on "
            "all of it. Ours had to have at most "
            + ", ".join(
                f"{part:g} of the {FIGURES[name]}" for name, part in contest.MARGINS.items()
            )
            + " of both others there.",
            "A reversal is a replica ordered after one went, or one gone after one was ordered. "
            "Drains that were given up are not counted; booting machines are paid for.",
            "Settings that won: "
            + "; ".join(f"{name}: {one.contender.settings}" for name, one in tuned.items()),
        ],
        data={
            "tuning": list(tuning),
            "unseen": list(unseen),
            "first_seed": {"tuning": contest.FIRST_SEED, "unseen": first_seed},
            "settings": {name: one.contender.given for name, one in tuned.items()},
            "tried": {name: list(one.tried) for name, one in tuned.items()},
            "means": means,
            "scores": {name: list(of) for name, of in scores.items()},
        },
    )


def _differences(scores: Mapping[str, Sequence[Score]], other: str, figure: str) -> list[float]:
    """Return our value minus theirs, for each trace."""
    pairs = zip(scores[OURS], scores[other], strict=True)
    return [float(getattr(our, figure) - getattr(their, figure)) for our, their in pairs]


def _paired_bar(scores: Mapping[str, Sequence[Score]], other: str, figure: str, label: str) -> Bar:
    found = estimate(_differences(scores, other, figure))
    return Bar(
        f"feed-forward − {name_of(other)}, trace by trace: {label}",
        found.mean,
        0.0,
        "",
        at_most=True,
        half_width=found.half_width,
    )


def _in_words(bars: Sequence[Bar]) -> str:
    """Describe which differences are significant."""
    met = sum(bar.met is True for bar in bars)
    unclear = sum(not bar.distinguishable for bar in bars)
    worse = len(bars) - met - unclear
    return (
        f"Of {len(bars)} differences in its favour beyond chance: {met}; not distinguishable: "
        f"{unclear}; against it: {worse}."
    )


def _with_interval(values: Sequence[float], digits: int) -> str:
    found = estimate(values)
    half = "" if found.half_width is None else f" ± {found.half_width:.{digits}f}"
    return f"{found.mean:.{digits}f}{half}"


def _values(scores: Sequence[Score], figure: str) -> list[float]:
    return [float(getattr(one, figure)) for one in scores]


def _means_table(scores: Mapping[str, Sequence[Score]]) -> ReportTable:
    return ReportTable(
        "Means over the unseen traces, with their 95 % intervals",
        ["policy", *FIGURES.values(), "drains given up"],
        [
            [
                name_of(name),
                _with_interval(_values(of, "above_s"), 1),
                _with_interval(_values(of, "machine_s"), 0),
                _with_interval(_values(of, "reversals"), 2),
                _with_interval(_values(of, "cancelled_drains"), 2),
            ]
            for name, of in scores.items()
        ],
    )


def _difference_table(scores: Mapping[str, Sequence[Score]]) -> ReportTable:
    rows = []
    for other in OTHERS:
        cells = [f"feed-forward − {name_of(other)}"]
        for figure, digits in (("above_s", 1), ("machine_s", 0), ("reversals", 2)):
            cells.append(_with_interval(_differences(scores, other, figure), digits))
        rows.append(cells)
    return ReportTable(
        "The same trace under both: mean differences, with their 95 % intervals",
        ["difference", *FIGURES.values()],
        rows,
    )


def _kinds_table(scores: Mapping[str, Sequence[Score]]) -> ReportTable:
    rows = []
    for kind in KINDS:
        for name, of in scores.items():
            some = [one for one in of if one.kind == kind]
            if some:
                means = contest.means_of(some)
                rows.append(
                    [
                        kind,
                        name_of(name),
                        f"{means['above_s']:.1f}",
                        f"{means['machine_s']:.0f}",
                        f"{means['reversals']:.2f}",
                    ]
                )
    return ReportTable("By kind of load", ["kind", "policy", *FIGURES.values()], rows)


def _tried_table(name: str, tuned: TunedContender) -> ReportTable:
    return ReportTable(
        f"What was tried for {name_of(name)} on the tuning half",
        ["settings", "traces", *FIGURES.values(), "cost"],
        [
            [
                str(one["settings"]),
                str(one["traces"]),
                f"{one['above_s']:.1f}",
                f"{one['machine_s']:.0f}",
                f"{one['reversals']:.2f}",
                f"{one['cost']:.0f}",
            ]
            for one in tuned.tried
        ],
    )
