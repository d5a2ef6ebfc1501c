"""The commands `tidegate lab run kills` and `storm`: injected faults, and the checker's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.measuring import say, show, with_the_lab
from tidegate.cli.output import JsonOption

if TYPE_CHECKING:
    from rich.console import Console

EXPERIMENTS = {
    "kills": "node and PostgreSQL killed at random moments under load; nothing confirmed is lost",
    "storm": "a queue scaled up and down under load while its machines, workers and leader are "
    "killed; nothing confirmed is lost",
}
SeedOption = Annotated[int | None, typer.Option(help="Of the random moments.")]
RateOption = Annotated[float, typer.Option(min=1.0, help="Puts a second of a producer.")]


def register(run: typer.Typer) -> None:
    run.command("kills", help=f"Run {EXPERIMENTS['kills']}.")(kills)
    run.command("storm", help=f"Run {EXPERIMENTS['storm']}.")(storm)


def kills(
    count: Annotated[int, typer.Option("--kills", min=1, help="How many.")] = 200,
    what: Annotated[str, typer.Option(help="node, postgres or both.")] = "both",
    nodes: Annotated[int, typer.Option(min=1, max=8, help="How many node processes.")] = 1,
    rate: RateOption = 400.0,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    with with_the_lab():
        from tidegate.lab.faults import kills as kills_run

        if what not in kills_run.MIXTURES:
            raise typer.BadParameter(f"what is one of {', '.join(sorted(kills_run.MIXTURES))}")
        options = kills_run.KillOptions(
            kills=count, what=what, nodes=nodes, rate_per_s=rate, seed=seed
        )
        report = kills_run.run_kills(options, say)
    show(_Judged(report), _render_kills, as_json=json, good=report.passed)


def storm(
    events: Annotated[int, typer.Option(min=1, help="Orders for another number.")] = 100,
    stores: Annotated[int, typer.Option(min=1, max=8, help="PostgreSQL servers.")] = 1,
    kill_store: Annotated[bool, typer.Option("--kill-store", help="Kill PostgreSQL, too.")] = False,
    rate: RateOption = 150.0,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    with with_the_lab():
        from tidegate.lab.faults import scale_storm

        options = scale_storm.StormOptions(
            events=events, stores=stores, kill_store=kill_store, rate_per_s=rate, seed=seed
        )
        report = scale_storm.run_storm(options, say)
    show(_Judged(report), _render_storm, as_json=json, good=report.passed)


class _Judged:
    """Adapts a report with a check result to `print_report`."""

    def __init__(self, report: Any) -> None:
        self.report = report

    def as_json(self) -> Any:
        import msgspec

        return msgspec.to_builtins(self.report)


def _render_kills(judged: _Judged, console: Console) -> None:
    report = judged.report
    console.print(
        f"{_counted(report.kills)} of {report.kills_wanted} in {report.duration_s:.0f} s "
        f"(seed {report.seed})"
    )
    left = "nobody knows what is" if report.left_in_store is None else report.left_in_store
    console.print(
        f"confirming again after {report.recovery_s_median:.2f} s (median), "
        f"{report.recovery_s_max:.2f} s at most; {left} left in the store"
    )
    _render_verdict(report, console)


def _render_storm(judged: _Judged, console: Console) -> None:
    report = judged.report
    console.print(
        f"{report.ups} times more and {report.downs} times fewer replicas, killed "
        f"{_counted(report.kills) or 'nobody'}, in {report.duration_s:.0f} s (seed {report.seed})"
    )
    console.print(
        f"{report.carried_out} of {report.waited_for} orders that were waited for carried out, the "
        f"slowest after {report.slowest_s:.1f} s; {report.left_in_store} left in the store"
    )
    _render_verdict(report, console)


def _counted(kills: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kills.items()))


def _render_verdict(report: Any, console: Console) -> None:
    console.print(str(report.verdict), markup=False)
    for failure in report.client_failures:
        console.print(str(failure), markup=False)
