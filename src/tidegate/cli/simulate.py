"""The command `tidegate simulate`: scaling policies on a recorded load, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.command_line import NotWritten
from tidegate.cli.output import Cell, Column, JsonOption, Output, print_progress
from tidegate.core.errors import InvalidValue
from tidegate.core.topology import ScalingPolicy

if TYPE_CHECKING:
    from tidegate.simulation.run import SimulationResult
    from tidegate.simulation.traces import SimulationScenario

# Shorter runs print no progress.
_PROGRESS_AFTER_S = 2.0
# The number of columns without those of an agreement.
_PLAIN_COLUMNS = 12


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(help="Name of a scenario, or a CSV file with the columns t_s,rate."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"Policies, separated by commas: {', '.join(ScalingPolicy)}; or all. "
            "[default: the scenario's own]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a key of the scaling, such as max_load=100, max=8 or boot=40s, or "
            "of the plant, such as plant.capacity_per_s=80.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the series as JSON and a plot as PNG and SVG to this folder."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Simulate scaling policies on a load: hours in seconds, without starting any process.

    Without a scenario, list the built-in scenarios.

    Example: `tidegate simulate day.csv --policy all --set max=8`
    """
    from tidegate.simulation import traces

    output = Output(json)
    if scenario is None:
        _list(traces.scenario_names(), output)
        return
    chosen = traces.load_scenario(scenario, seed)
    pairs = _pairs(settings or [])
    # Check all settings before the first run.
    all_of_them = [
        traces.with_scaling_settings(one, pairs) for one in _with_policies(chosen, policy)
    ]
    if not chosen.clients and ScalingPolicy.CLIENTS in (one.scaling.policy for one in all_of_them):
        print_progress(
            f"note: {chosen.name} says what arrives and has no clients that come and go, so policy "
            "clients has nothing to count and changes no replicas; the scenario clients has some"
        )
    outcomes = [_run(one, seed) for one in all_of_them]
    if out is not None:
        _write(chosen, outcomes, out)
    if json:
        output.json([one.as_json() for one in outcomes])
        return
    _print(chosen, outcomes, output)
    if out is not None:
        output.line(f"{out / 'simulation.png'}")


def _list(names: dict[str, str], output: Output) -> None:
    if output.as_json:
        output.json(names)
    else:
        columns = [Column("scenario", style="bold"), Column("what it is")]
        output.table(columns, [list(entry) for entry in names.items()])


def _pairs(written: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for one in written:
        key, sign, value = one.partition("=")
        if not sign or not key.strip() or not value.strip():
            raise InvalidValue(f"--set {one}: write it as key=value, such as max_load=100")
        pairs[key.strip()] = value.strip()
    return pairs


def _with_policies(scenario: SimulationScenario, written: str | None) -> list[SimulationScenario]:
    from tidegate.simulation.traces import with_policy

    if written is None:
        return [scenario]
    names = list(ScalingPolicy) if written == "all" else []
    for name in [] if names else written.split(","):
        try:
            names.append(ScalingPolicy(name.strip()))
        except ValueError:
            raise InvalidValue(
                f"no policy is called {name.strip()!r}; there are: {', '.join(ScalingPolicy)}, all"
            ) from None
    return [with_policy(scenario, name) for name in names]


def _run(scenario: SimulationScenario, seed: int) -> SimulationResult:
    import time

    from tidegate.simulation.run import simulate as run

    began = time.monotonic()

    def progress(done: float) -> None:
        if time.monotonic() - began > _PROGRESS_AFTER_S:
            print_progress(f"{scenario.name}, {scenario.scaling.policy}: {100 * done:.0f} %")

    return run(scenario, seed, progress=progress)


def _write(scenario: SimulationScenario, outcomes: list[SimulationResult], out: Path) -> None:
    import msgspec

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritten(f"{out}: cannot be made a folder: {error.strerror}") from None
    plain: list[Any] = [one.as_json() for one in outcomes]
    (out / "simulation.json").write_bytes(msgspec.json.encode(plain) + b"\n")
    from tidegate.simulation.figures import draw_outcomes

    for kind in ("png", "svg"):
        draw_outcomes(outcomes, out / f"simulation.{kind}", title=scenario.about)


def _print(scenario: SimulationScenario, outcomes: list[SimulationResult], output: Output) -> None:
    hours = scenario.trace.duration_s / 3600
    output.line(
        f"{scenario.about}: {scenario.trace.messages:,.0f} messages in {hours:.2f} h, "
        f"{scenario.trace.peak_per_s:,.0f} a second at most"
    )
    columns = [
        Column("policy", style="bold"),
        Column("above max_load s", shown=_one, right=True),
        Column("machine-s", shown=_whole, right=True),
        Column("ideal", shown=_whole, right=True, spare=True),
        Column("reversals", right=True),
        Column("peak load", shown=_one, right=True),
        Column("wait s mean", shown=_two, right=True),
        Column("wait s max", shown=_one, right=True, spare=True),
        Column("replicas max", right=True, spare=True),
        Column("boots", right=True, spare=True),
        Column("waiting at end", right=True, spare=True),
        Column("replica-s", shown=_whole, right=True, spare=True),
    ]
    if any(one.windows_breached is not None for one in outcomes):
        columns += [Column("breached", right=True), Column("warned", right=True)]
    rows: list[list[Cell]] = [
        [
            *(one.policy, one.above_s, one.machine_s, one.machine_s_ideal, one.reversals),
            *(one.average_load_peak, one.wait_s_mean, one.wait_s_max, one.replicas_peak),
            *(one.boots, one.waiting_at_end, one.replica_s),
            *_windows(one, len(columns)),
        ]
        for one in outcomes
    ]
    output.table(columns, rows)


def _windows(outcome: SimulationResult, columns: int) -> list[Cell]:
    """Return the cells for the agreement's windows, if any scenario has an agreement."""
    found: list[Cell] = [outcome.windows_breached, outcome.windows_warned]
    return found if columns > _PLAIN_COLUMNS else []


def _one(value: float) -> str:
    return f"{value:,.1f}"


def _two(value: float) -> str:
    return f"{value:,.2f}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"
