"""The commands `tidegate agreement check|plan|import|export`."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from tidegate.cli.command_line import EMPTY_RESULT, FAILED, NotFound, NotWritten
from tidegate.cli.learn import DataOption, warn
from tidegate.cli.options import ConfigOption
from tidegate.cli.output import Cell, Column, JsonOption, Output, terminal_table
from tidegate.cli.settings import load_settings
from tidegate.cli.wiring import StoreDataOption, StoreOption, open_store, running_stores
from tidegate.core.errors import InvalidValue
from tidegate.core.text import (
    escape_control_characters,
    format_duration_long,
    parse_duration_s,
    parse_rate_per_s,
)

if TYPE_CHECKING:
    from tidegate.agreements.document import Agreement
    from tidegate.agreements.ledger import StoredAgreementStatus
    from tidegate.agreements.openslo import Assumption
    from tidegate.agreements.problems import DocumentProblem
    from tidegate.cli.settings import Settings
    from tidegate.control.planning import CapacityPlan, Offer, PlanningInputs
    from tidegate.storage.postgres.store import PostgresStore


FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...", help="An agreement as a TOML file, or a folder of such files."
    ),
]

_AGREEMENT_COLUMNS = [
    Column("agreement", style="bold"),
    Column("governs"),
    Column("metric"),
    Column("warns at", right=True),
    Column("breaches at", right=True),
    Column("judged each", right=True),
    Column("objective", right=True, spare=True),
    Column("period", right=True, spare=True),
]

agreement_app = typer.Typer(
    name="agreement",
    help="Check agreements, plan their capacity, and convert them from and to other formats.",
    no_args_is_help=True,
)


def register_agreements(app: typer.Typer) -> None:
    agreement_app.command("plan")(plan)
    app.add_typer(agreement_app)


@agreement_app.command("check")
def check(files: FilesArgument, json: JsonOption = False) -> None:
    """Check that agreements are valid and free of contradictions.

    Each problem is printed with file, line, key, reason and remedy. The exit code is 1 if there are
    any.

    Example: `tidegate agreement check agreements/`
    """
    from tidegate.agreements.document import AgreementInvalid, read_agreements

    output = Output(json)
    try:
        agreements = read_agreements(files)
    except AgreementInvalid as invalid:
        # The question was whether the file is valid. "No" is an answer with exit code 1, not a
        # usage error.
        if json:
            output.json(
                {"valid": False, "complaints": [problem_json(one) for one in invalid.found]}
            )
        else:
            print(f"tidegate: {invalid}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    if json:
        output.json({"valid": True, "agreements": [_agreement_json(one) for one in agreements]})
        return
    output.table(_AGREEMENT_COLUMNS, [row for one in agreements for row in _agreement_rows(one)])


@agreement_app.command("import")
def import_agreements(
    file: Annotated[
        Path, typer.Argument(help="A file in OpenSLO v1 (.yaml) or TAPAS-style XML (.xml).")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write to this file, or write one file per agreement to this folder. "
            "[default: print]"
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SLO=METRIC[:UNIT]",
            help="The metric that an SLO with another source measures, such as "
            "foo=response:ms; may be repeated.",
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(help="The queue that the agreement governs, if the file names none."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(help="The HTTP service that the agreement governs, if the file names none."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Convert OpenSLO or TAPAS-style XML to TOML agreements; print a note for each part left out.

    Example: `tidegate agreement import slo.yaml --metric checkout=response:ms --http shop`
    """
    from tidegate.agreements.document import format_agreement

    if queue is not None and http is not None:
        raise typer.BadParameter("of --queue and --http say one")
    governs = ("queue", queue) if queue else ("http", http) if http else None
    agreements, notes = _imported(file, _assumptions(metric or []), governs)
    _print_notes(notes)
    output = Output(json)
    if json:
        output.json([_agreement_json(one) for one in agreements])
        return
    texts = {one.name: format_agreement(one) for one in agreements}
    if out is None:
        output.line("\n".join(texts.values()).rstrip("\n"))
        return
    if len(texts) > 1 and not out.is_dir():
        raise InvalidValue(f"{file} holds {len(texts)} agreements, and {out} is no folder for them")
    for name, text in texts.items():
        place = out / f"{_file_name(name)}.toml" if out.is_dir() else out
        _write_new(place, text)
        output.line(str(place))


@agreement_app.command("export")
def export_agreement(
    file: Annotated[Path, typer.Argument(help="An agreement as a TOML file.")],
    out: Annotated[Path | None, typer.Option(help="Write to this file. [default: print]")] = None,
) -> None:
    """Convert an agreement to OpenSLO v1; print a note for each part that OpenSLO cannot express.

    Example: `tidegate agreement export orders.toml --out orders.yaml`
    """
    from tidegate.agreements.document import parse_agreement, read_text
    from tidegate.agreements.openslo import export_openslo
    from tidegate.agreements.problems import lines_of_keys

    document = read_text(file, "TOML")
    text, notes = export_openslo(parse_agreement(document, str(file)), lines_of_keys(document))
    _print_notes(notes)
    if out is None:
        Output().line(text.rstrip("\n"))
    else:
        _write_new(out, text)


def _imported(
    file: Path, assumptions: dict[str, Assumption], governs: tuple[str, str] | None
) -> tuple[list[Agreement], list[DocumentProblem]]:
    from tidegate.agreements.document import read_bytes, read_text

    if file.suffix.lower() == ".xml":
        from tidegate.agreements.tapas import parse_tapas

        if assumptions or governs:
            raise typer.BadParameter("--metric, --queue and --http are for OpenSLO: XML says it")
        agreement, notes = parse_tapas(read_bytes(file), str(file))
        return [agreement], notes
    if file.suffix.lower() not in (".yaml", ".yml"):
        raise InvalidValue(f"{file}: OpenSLO is expected in a .yaml, TAPAS-style XML in a .xml")
    from tidegate.agreements.openslo import parse_openslo

    return parse_openslo(read_text(file, "YAML"), str(file), assumptions, governs)


def _assumptions(said: list[str]) -> dict[str, Assumption]:
    from tidegate.agreements.openslo import Assumption

    found = {}
    for one in said:
        name, equals, measured = one.partition("=")
        metric, _, unit = measured.partition(":")
        if not (name and equals and metric):
            raise typer.BadParameter(f"{one!r} is not SLO=METRIC, such as checkout=response:ms")
        found[name] = Assumption(metric, unit)
    return found


def _print_notes(notes: Iterable[DocumentProblem]) -> None:
    for note in notes:
        print(note, file=sys.stderr)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "agreement"


def _write_new(place: Path, text: str) -> None:
    """Write a new file; never overwrite an existing one."""
    try:
        with place.open("x", encoding="utf-8") as sink:
            sink.write(text)
    except FileExistsError:
        raise NotWritten(f"{place} exists: remove it, or name another file") from None
    except OSError as error:
        raise NotWritten(f"{place} cannot be written: {error.strerror}") from None


def problem_json(complaint: DocumentProblem) -> dict[str, Any]:
    """Return a problem as JSON values."""
    return {
        "file": complaint.file,
        "line": complaint.line,
        "key": complaint.key,
        "value": complaint.value,
        "reason": complaint.reason,
        "instead": complaint.instead or None,
    }


def _governs(agreement: Agreement) -> str:
    return f"queue {agreement.queue}" if agreement.queue else f"http {agreement.http}"


def _agreement_rows(agreement: Agreement) -> Iterable[list[Any]]:
    from tidegate.agreements.problems import (
        format_exact_duration,
        format_plain_number,
        format_quantity,
    )

    for metric in agreement.metrics:
        warns = format_quantity(metric.unit, metric.warning)
        yield [
            agreement.name,
            _governs(agreement),
            metric.name,
            f"{warns}, until learned" if metric.learned else warns,
            format_quantity(metric.unit, metric.breach),
            format_exact_duration(agreement.window_s),
            format_plain_number(agreement.objective),
            format_exact_duration(agreement.period_s),
        ]


def _agreement_json(agreement: Agreement) -> dict[str, Any]:
    uses = agreement.resources
    return {
        "name": agreement.name,
        "file": agreement.source,
        "queue": agreement.queue,
        "http": agreement.http,
        "window_s": agreement.window_s,
        "objective": agreement.objective,
        "period_s": agreement.period_s,
        "replicas": {"min": uses.replicas_min, "max": uses.replicas_max},
        "sla_delta_per_s2": uses.sla_delta_per_s2,
        "capacity_per_s": uses.capacity_per_s,
        "reconfiguration_s": uses.reconfiguration_s,
        "insufficient": uses.insufficient.value,
        "load_max_per_s": uses.load_max_per_s,
        "reduced": uses.reduced or None,
        "metrics": [
            {
                "metric": metric.name,
                "unit": metric.unit.value,
                "worse": metric.worse.value,
                "breach": metric.breach,
                "warning": metric.warning,
                "learned": metric.learned,
                "slope_per_s": metric.slope_per_s,
            }
            for metric in agreement.metrics
        ],
    }


# The command `tidegate agreement plan`: the resources an agreement needs.


_TAKES = [Column("takes", style="bold"), Column("how many", right=True)]
_INPUT_COLUMNS = [Column("from", style="bold"), Column("value", right=True), Column("known by")]
_PLAN_COLUMNS = [Column("metric", style="bold"), Column("warns at"), Column("breaches at")]

_HEADINGS = {
    "offered": "Offered:",
    "reduced": "Offered, reduced to what there is:",
    "not known": "Asked for; whether it can be kept is not known:",
}


def plan(
    file: Annotated[Path, typer.Argument(help="An agreement as a TOML file.")],
    machines: Annotated[
        int | None,
        typer.Option(min=0, help="Number of available machines. [default: as many as needed]"),
    ] = None,
    slots: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of replicas that fit on one machine.")
    ] = 1,
    load: Annotated[
        str | None,
        typer.Option(help="The load to serve, such as 400/s. [default: the agreed throughput]"),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(help="The capacity of one replica, such as 120/s. [default: learned]"),
    ] = None,
    boot: Annotated[
        str | None, typer.Option(help="The boot time of a machine, such as 90s. [default: learned]")
    ] = None,
    knowledge: Annotated[
        Path | None,
        typer.Option(help="Read the learned models from this folder. [default: from the settings]"),
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Compute the machines, slots, replicas, warm machines and prefetch that an agreement needs.

    With --machines, report whether they suffice; the offer is then complete, reduced or refused.
    The exit code is 1 if it is refused.

    Example: `tidegate agreement plan orders.toml --machines 4 --slots 2`
    """
    from tidegate.agreements.document import read_agreement
    from tidegate.control.planning import AvailableSlots, PlanningRequest, planning_inputs
    from tidegate.control.planning import plan_capacity as plan_of
    from tidegate.telemetry.models import ModelRegistry

    asked = PlanningRequest(
        load_per_s=_quantity(load, "--load", parse_rate_per_s),
        capacity_per_s=_quantity(capacity, "--capacity", parse_rate_per_s),
        boot_s=_quantity(boot, "--boot", parse_duration_s),
        slots_per_machine=slots,
        room=None if machines is None else AvailableSlots.of_machines(machines, slots),
    )
    agreement = read_agreement(file)
    settings = load_settings(config, os.environ).with_data(data)
    folder = knowledge or settings.knowledge_folder
    known = planning_inputs(agreement, asked, ModelRegistry(folder, warn))
    found = plan_of(agreement, known, asked)
    output = Output(json)
    if json:
        output.json(_as_json(agreement, found))
    else:
        _show(agreement, found, machines, output)
    if found.offer is None:
        raise typer.Exit(FAILED)


def _quantity(said: str | None, option: str, parse: Any) -> float | None:
    if said is None:
        return None
    try:
        found = float(parse(said))
    except InvalidValue as wrong:
        raise typer.BadParameter(str(wrong), param_hint=option) from None
    if found <= 0.0:
        raise typer.BadParameter("must be above 0", param_hint=option)
    return found


def _show(agreement: Agreement, found: CapacityPlan, machines: int | None, output: Output) -> None:
    warm = found.machines_warm
    output.table(
        _TAKES,
        [
            ["replicas", found.replicas],
            ["slots per machine", found.slots],
            ["machines at work", found.machines_working],
            ["machines warm", "not known" if warm is None else warm],
            ["machines there", machines],
            *([["prefetch", found.prefetch]] if found.prefetch else []),
        ],
    )
    for sentence in found.because:
        output.line(f"{sentence}.", wrap=True)
    if found.prefetch:
        rate = found.consumer_rate_per_s
        each = "" if rate is None else f" Each consumer has to take {rate:.4g}/s."
        output.line(
            f"Prefetch: keep up, so that no message waits in the hands of a consumer.{each}",
            wrap=True,
        )
    output.table(_INPUT_COLUMNS, _plan_rows(found.figures))
    for sentence in found.unknown:
        output.line(f"{sentence[0].upper()}{sentence[1:]}.", wrap=True)
    for sentence in found.missing:
        output.line(f"Not enough: {sentence}.", style="bold", wrap=True)
    if found.offer is None:
        reduce = (
            ""
            if agreement.resources.insufficient == "reduce"
            else (' With insufficient = "reduce" less would be offered.')
        )
        output.line(f"Refused: {agreement.name} cannot be kept with this.{reduce}", wrap=True)
        return
    _show_offer(found, found.offer, output)


def _show_offer(found: CapacityPlan, offer: Offer, output: Output) -> None:
    from tidegate.agreements.problems import format_quantity

    output.line(_HEADINGS[found.state])
    output.table(
        _PLAN_COLUMNS,
        [
            [
                one.name,
                format_quantity(one.unit, one.warning),
                format_quantity(one.unit, one.breach),
            ]
            for one in offer.metrics
        ],
    )
    if offer.load_max_per_s is not None:
        output.line(f"It holds up to {offer.load_max_per_s:.4g}/s.")
    if found.state == "reduced" and offer.sla_delta_per_s2 is not None:
        output.line(f"A growth of {offer.sla_delta_per_s2:.4g}/s each second is kept up with.")


def _plan_rows(known: PlanningInputs) -> list[list[Any]]:
    named = {
        "load a second": known.load_per_s,
        "capacity of a replica, a second": known.capacity_per_s,
        "capacity of a machine, a second": known.machine_capacity_per_s,
        "growth, a second per second": known.sla_delta_per_s2,
        "boot, seconds": known.boot_s,
    }
    return [
        [what, "not known" if one.value is None else f"{one.value:.4g}", one.origin]
        for what, one in named.items()
    ]


def _as_json(agreement: Agreement, found: CapacityPlan) -> dict[str, Any]:
    offer = found.offer
    return {
        "agreement": agreement.name,
        "state": found.state,
        "replicas": found.replicas,
        "slots_per_machine": found.slots,
        "machines_working": found.machines_working,
        "machines_warm": found.machines_warm,
        "prefetch": found.prefetch,
        "consumer_rate_per_s": found.consumer_rate_per_s,
        "figures": {
            name: {"value": one.value, "origin": one.origin}
            for name, one in vars(found.figures).items()
        },
        "because": found.because,
        "unknown": found.unknown,
        "missing": found.missing,
        "offer": None
        if offer is None
        else {
            "metrics": [
                {"metric": one.name, "warning": one.warning, "breach": one.breach}
                for one in offer.metrics
            ],
            "load_max_per_s": offer.load_max_per_s,
            "sla_delta_per_s2": offer.sla_delta_per_s2,
        },
    }


# The command `tidegate sla`: the status of every agreement, and the reaction to it.
#
# The store has the leader's last verdict and its decisions. The answer therefore does not depend on
# which node leads. If no leader updates the status, the command reports that.


_SLA_POLL_S = 1.0
_STYLES = {"breached": "bold red", "warned": "yellow", "met": "green"}
_NOT_JUDGED = "not judged"
# The number of decisions that are read to find the last one with an action.
_DECISIONS_READ = 20


@dataclass(frozen=True)
class SlaRow:
    """The status of one agreement, for display."""

    agreement: str
    governs: str
    # "met", "warned", "breached", "no data", or "not judged" if no leader evaluates it.
    state: str
    # None if nothing was judged yet.
    budget_left: float | None = None
    burn_rate: float | None = None
    alarm: str | None = None
    # In the last hour.
    met: int = 0
    warned: int = 0
    breached: int = 0
    # The findings of the last window, the worst first.
    evidence: tuple[str, ...] = ()
    doing: str = ""
    # The end of the last window, in seconds since 1970.
    judged_at: float | None = None
    # What the offer reduces and why; empty if it reduces nothing.
    reduced: str = ""


COLUMNS = [
    Column("agreement", style="bold"),
    Column("governs"),
    Column("state"),
    Column("budget left", shown=lambda part: f"{part:.1%}", right=True),
    Column("burn rate", shown=lambda rate: f"{rate:.2f}", right=True),
    Column("alarm", spare=True),
    Column("windows met/warned/breached", right=True, spare=True),
    Column("what is done"),
]


def register_sla(app: typer.Typer) -> None:
    app.command("sla")(sla)


def sla(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Only this agreement, or only the agreements of this queue or service.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh the output every second.")
    ] = False,
    json: JsonOption = False,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show every agreement: met, warned or breached, error budget, burn rate and reaction.

    Window counts are those of the last hour. A burn rate of 1 uses up the budget exactly in its
    period.

    Example: `tidegate sla orders --watch`
    """
    settings = load_settings(config, os.environ)
    urls = running_stores(store, data, settings)
    output = Output(json)
    promised = _promised(settings)
    show = _watched if watch else _print_once
    asyncio.run(show(output, urls, name, promised))


def _promised(settings: Settings) -> list[Agreement]:
    """Return the agreements of the settings; print a message and return none if one is invalid."""
    from tidegate.agreements.document import AgreementInvalid, read_agreements

    try:
        return read_agreements(settings.pipeline.agreement_places)
    except AgreementInvalid as wrong:
        print(f"[pipeline] agreements cannot be read: {wrong}", file=sys.stderr)
        return []


async def _print_once(
    output: Output, urls: Sequence[str], name: str | None, promised: Sequence[Agreement]
) -> None:
    async with open_store(urls) as store:
        rows = chosen(await agreement_statuses(store, time.time(), promised), name)
    if output.as_json:
        output.json([sla_json(row) for row in rows])
    elif rows and output.on_terminal:
        output.console.print(_view(rows, output.console.width, name is not None))
    elif rows:
        output.table(COLUMNS, [sla_cells(row) for row in rows])
        for row in rows if name is not None else []:
            for one in row.evidence:
                output.line(f"  {escape_control_characters(one)}")
    if not rows:
        if not output.as_json:
            output.line("there is no agreement that anybody keeps here", style="dim")
        raise typer.Exit(EMPTY_RESULT)


async def _watched(
    output: Output, urls: Sequence[str], name: str | None, promised: Sequence[Agreement]
) -> None:
    if not output.on_terminal:
        async for rows in _poll_rows(urls, name, promised):
            if output.as_json:
                output.json([sla_json(row) for row in rows], one_line=True)
            else:
                output.table(COLUMNS, [sla_cells(row) for row in rows])
        return
    with Live(console=output.console, auto_refresh=False) as live:
        async for rows in _poll_rows(urls, name, promised):
            live.update(_view(rows, output.console.width, name is not None), refresh=True)


def _view(rows: Sequence[SlaRow], width: int, in_full: bool) -> Group:
    """Return a table, with the evidence below it, because sentences are too long for cells."""
    table = terminal_table(COLUMNS[:-1], [sla_cells(row)[:-1] for row in rows], width=width)
    lines = []
    for row in rows:
        style = _STYLES.get(row.state, "dim")
        evidence = row.evidence if in_full else row.evidence[:1]
        lines += [
            Text(f"{row.agreement}: {escape_control_characters(one)}", style=style)
            for one in evidence
        ]
        if row.reduced:
            lines.append(Text(f"{row.agreement}: {escape_control_characters(_offer(row))}"))
        if row.doing:
            lines.append(
                Text(f"{row.agreement}: {escape_control_characters(row.doing)}", style="dim")
            )
    return Group(table, *lines)


async def _poll_rows(
    urls: Sequence[str], name: str | None, promised: Sequence[Agreement]
) -> AsyncIterator[list[SlaRow]]:
    async with open_store(urls) as store:
        while True:
            yield chosen(await agreement_statuses(store, time.time(), promised), name)
            await asyncio.sleep(_SLA_POLL_S)


async def agreement_statuses(
    store: PostgresStore, now: float, promised: Sequence[Agreement] = ()
) -> list[SlaRow]:
    """Return the status of every agreement, by name.

    Include agreements of services that are not yet judged, and those in the settings that no leader
    evaluates.
    """
    from tidegate.agreements.document import AgreementInvalid, parse_agreement
    from tidegate.agreements.ledger import StoredAgreementStatus

    services = await store.services()
    hosted = {service.spec.name for service in services}
    rows: dict[tuple[str, str], SlaRow] = {}
    for document in (await store.standings()).values():
        kept = StoredAgreementStatus.from_json(document)
        # The status of a deleted subject stays in the store, so that a new deployment resumes its
        # budget.
        if kept is not None and await _is_there(store, kept, hosted):
            row = sla_row(kept, now, await _last_decision(store, kept, now))
            rows[row.agreement, row.governs] = row
    judged = {row.governs for row in rows.values()}
    for service in services:
        if f"http {service.spec.name}" in judged:
            continue
        try:
            agreement = parse_agreement(service.spec.agreement, service.spec.name).name
        except AgreementInvalid:
            agreement = service.spec.name
        rows[agreement, service.spec.name] = SlaRow(
            agreement=agreement,
            governs=f"http {service.spec.name}",
            state=_NOT_JUDGED,
            doing=service.detail,
        )
    known = {row.agreement for row in rows.values()}
    for one in promised:
        if one.name not in known:
            queues = [] if one.queue is None else await store.list_queues()
            row = unjudged(one, hosted, [queue.name for queue in queues])
            rows[row.agreement, row.governs] = row
    return [rows[key] for key in sorted(rows)]


def unjudged(agreement: Agreement, hosted: Iterable[str], queues: Iterable[str]) -> SlaRow:
    """Return the row of an agreement in the settings that no leader evaluates, with a reason."""
    if agreement.http is not None:
        why = f"nothing is hosted here as {agreement.http}"
        if agreement.http in hosted:
            why = f"{agreement.http} is hosted under another agreement"
        return SlaRow(agreement.name, f"http {agreement.http}", _NOT_JUDGED, doing=why)
    why = f"no queue is called {agreement.queue}"
    if any(map(agreement.governs_queue, queues)):
        why = "no node that leads knows of it: is it in the settings of the nodes, too?"
    return SlaRow(agreement.name, f"queue {agreement.queue}", _NOT_JUDGED, doing=why)


async def _is_there(store: PostgresStore, kept: StoredAgreementStatus, hosted: set[str]) -> bool:
    if kept.http is not None:
        return kept.http in hosted
    return await store.find_queue(None, kept.queue) is not None


def sla_row(kept: StoredAgreementStatus, now: float, decided: str = "") -> SlaRow:
    """Return the row of a stored status; `decided` is the text of the last decision."""
    from tidegate.agreements.evaluation import SEVERITY

    standing = kept.standing
    silent = kept.is_silent(now)
    worst_first = sorted(kept.promises, key=lambda one: -SEVERITY.index(one.verdict))
    return SlaRow(
        agreement=kept.agreement,
        governs=f"http {kept.http}" if kept.http else f"queue {kept.queue}",
        state=_NOT_JUDGED if silent else kept.verdict.value.replace("_", " "),
        budget_left=standing.budget_left,
        burn_rate=standing.burn_hour,
        alarm=standing.alarm,
        met=standing.last_hour.met,
        warned=standing.last_hour.warned,
        breached=standing.last_hour.breached,
        evidence=tuple(one.evidence for one in worst_first),
        doing=f"nobody has judged it for {format_duration_long(now - kept.at)}"
        if silent
        else kept.doing or decided,
        judged_at=kept.at,
        reduced=kept.reduced,
    )


async def _last_decision(store: PostgresStore, kept: StoredAgreementStatus, now: float) -> str:
    import msgspec

    from tidegate.core.decisions import Decision, format_action, format_rule
    from tidegate.core.services import decision_subject

    about = kept.queue or "" if kept.http is None else decision_subject(kept.http)
    for document in await store.decisions(about, _DECISIONS_READ):
        decision = msgspec.json.decode(document, type=Decision)
        # Transitions of a promise are evidence and not a reaction.
        if decision.loop == "agreement" and not decision.actions:
            continue
        said = ", ".join(map(format_action, decision.actions)) or decision.reason
        said = said or format_rule(decision.rule)
        return f"{said} ({format_duration_long(now - decision.at)} ago)"
    return ""


def chosen(rows: list[SlaRow], name: str | None) -> list[SlaRow]:
    """Return the rows whose agreement or subject has the name; raise `NotFound` if none has."""
    if name is None:
        return rows
    found = [row for row in rows if name in (row.agreement, row.governs.partition(" ")[2])]
    if not found:
        there = f"there is {', '.join(row.agreement for row in rows)}" if rows else "there is none"
        raise NotFound(f"no agreement is called {name!r}: {there}")
    return found


def sla_cells(row: SlaRow) -> list[Cell]:
    judged = row.met + row.warned + row.breached
    return [
        row.agreement,
        row.governs,
        row.state,
        row.budget_left,
        row.burn_rate,
        row.alarm,
        f"{row.met}/{row.warned}/{row.breached}" if judged else None,
        "; ".join(filter(None, (_offer(row), row.doing))) or None,
    ]


def _offer(row: SlaRow) -> str:
    """Return the text about a reduced offer; empty if nothing is reduced."""
    return row.reduced and f"reduced: {row.reduced}"


def sla_json(row: SlaRow) -> dict[str, Any]:
    return {
        "agreement": row.agreement,
        "governs": row.governs,
        "state": row.state,
        "budget_left": row.budget_left,
        "burn_rate": row.burn_rate,
        "alarm": row.alarm,
        "last_hour": {"met": row.met, "warned": row.warned, "breached": row.breached},
        "evidence": list(row.evidence),
        "doing": row.doing or None,
        "judged_at": row.judged_at,
        "reduced": row.reduced or None,
    }
