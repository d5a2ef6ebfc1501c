"""The commands `tidegate agreement check|plan|import|export`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.agreement_planning import plan
from tidegate.cli.exit_codes import FAILED, NotWritten
from tidegate.cli.output import Column, JsonOption, Output
from tidegate.core.errors import InvalidValue

if TYPE_CHECKING:
    from tidegate.agreement.complaints import Complaint
    from tidegate.agreement.document import Agreement
    from tidegate.agreement.openslo_import import Assumption

FilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="A TOML document, or a folder of them.")
]

_POINTS = [
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
    help="What a service promises: check it, plan it, take it from and to other formats.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    agreement_app.command("plan")(plan)
    app.add_typer(agreement_app)


@agreement_app.command("check")
def check(files: FilesArgument, json: JsonOption = False) -> None:
    """Check that agreements are valid and free of contradictions.

    Each problem is printed with file, line, key, reason and remedy. The exit code is 1 if there are
    any.

    Example: `tidegate agreement check agreements/`
    """
    from tidegate.agreement.document import AgreementInvalid, read_agreements

    output = Output(json)
    try:
        agreements = read_agreements(files)
    except AgreementInvalid as invalid:
        # The question was whether the file is valid. "No" is an answer with exit code 1, not a
        # usage error.
        if json:
            output.json({"valid": False, "complaints": [as_json(one) for one in invalid.found]})
        else:
            print(f"tidegate: {invalid}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    if json:
        output.json({"valid": True, "agreements": [_agreement_json(one) for one in agreements]})
        return
    output.table(_POINTS, [row for one in agreements for row in _rows(one)])


@agreement_app.command("import")
def import_agreements(
    file: Annotated[Path, typer.Argument(help="OpenSLO v1 (.yaml), or TAPAS-style XML (.xml).")],
    out: Annotated[
        Path | None,
        typer.Option(help="A file, or a folder for one file each. [default: to the screen]"),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SLO=METRIC[:UNIT]",
            help="What an SLO of another source measures, as in foo=response:ms; may be repeated.",
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Which it governs, if it does not say.")] = None,
    http: Annotated[str | None, typer.Option(help="Which it governs, if it does not say.")] = None,
    json: JsonOption = False,
) -> None:
    """Convert OpenSLO or TAPAS-style XML to TOML agreements; print a note for each part left out.

    Example: `tidegate agreement import slo.yaml --metric checkout=response:ms --http shop`
    """
    from tidegate.agreement.writing import written

    if queue is not None and http is not None:
        raise typer.BadParameter("of --queue and --http say one")
    governs = ("queue", queue) if queue else ("http", http) if http else None
    agreements, notes = _imported(file, _assumptions(metric or []), governs)
    _say(notes)
    output = Output(json)
    if json:
        output.json([_agreement_json(one) for one in agreements])
        return
    texts = {one.name: written(one) for one in agreements}
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
    file: Annotated[Path, typer.Argument(help="A TOML document.")],
    out: Annotated[Path | None, typer.Option(help="A file. [default: to the screen]")] = None,
) -> None:
    """Convert an agreement to OpenSLO v1; print a note for each part that OpenSLO cannot express.

    Example: `tidegate agreement export orders.toml --out orders.yaml`
    """
    from tidegate.agreement.document import parse_agreement, text_of
    from tidegate.agreement.lines import lines_of_keys
    from tidegate.agreement.openslo_export import openslo

    document = text_of(file, "TOML")
    text, notes = openslo(parse_agreement(document, str(file)), lines_of_keys(document))
    _say(notes)
    if out is None:
        Output().line(text.rstrip("\n"))
    else:
        _write_new(out, text)


def _imported(
    file: Path, assumptions: dict[str, Assumption], governs: tuple[str, str] | None
) -> tuple[list[Agreement], list[Complaint]]:
    from tidegate.agreement.document import bytes_of, text_of

    if file.suffix.lower() == ".xml":
        from tidegate.agreement.tapas import parse_tapas

        if assumptions or governs:
            raise typer.BadParameter("--metric, --queue and --http are for OpenSLO: XML says it")
        agreement, notes = parse_tapas(bytes_of(file), str(file))
        return [agreement], notes
    if file.suffix.lower() not in (".yaml", ".yml"):
        raise InvalidValue(f"{file}: OpenSLO is expected in a .yaml, TAPAS-style XML in a .xml")
    from tidegate.agreement.openslo_import import parse_openslo

    return parse_openslo(text_of(file, "YAML"), str(file), assumptions, governs)


def _assumptions(said: list[str]) -> dict[str, Assumption]:
    from tidegate.agreement.openslo_import import Assumption

    found = {}
    for one in said:
        name, equals, measured = one.partition("=")
        metric, _, unit = measured.partition(":")
        if not (name and equals and metric):
            raise typer.BadParameter(f"{one!r} is not SLO=METRIC, such as checkout=response:ms")
        found[name] = Assumption(metric, unit)
    return found


def _say(notes: Iterable[Complaint]) -> None:
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


def as_json(complaint: Complaint) -> dict[str, Any]:
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


def _rows(agreement: Agreement) -> Iterable[list[Any]]:
    from tidegate.agreement.quantity_words import duration_word, plain, worded

    for metric in agreement.metrics:
        warns = worded(metric.unit, metric.warning)
        yield [
            agreement.name,
            _governs(agreement),
            metric.name,
            f"{warns}, until learned" if metric.learned else warns,
            worded(metric.unit, metric.breach),
            duration_word(agreement.window_s),
            plain(agreement.objective),
            duration_word(agreement.period_s),
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
