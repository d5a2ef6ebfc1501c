"""The command `tidegate sla`: the status of every agreement, and the reaction to it.

The store has the leader's last verdict and its decisions. The answer therefore does not depend on
which node leads. If no leader updates the status, the command reports that.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from tidegate.cli.exit_codes import NOTHING_THERE, NoSuch
from tidegate.cli.output import Cell, Column, JsonOption, Output, terminal_table
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.cli.store_wiring import StoreDataOption, StoreOption, opened, running_stores
from tidegate.core.harmless import harmless
from tidegate.core.quantities import spoken_duration

if TYPE_CHECKING:
    from tidegate.agreement.document import Agreement
    from tidegate.agreement.kept_standing import KeptStanding
    from tidegate.cli.settings.settings import Settings
    from tidegate.storage.postgres import PostgresStore

_LOOK_S = 1.0
_STYLES = {"breached": "bold red", "warned": "yellow", "met": "green"}
_NOT_JUDGED = "not judged"
# The number of decisions that are read to find the last one with an action.
_DECISIONS_READ = 20


@dataclass(frozen=True)
class Row:
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


def register(app: typer.Typer) -> None:
    app.command("sla")(sla)


def sla(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="An agreement, or what it governs.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again each second.")] = False,
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
    show = _watched if watch else _once
    asyncio.run(show(output, urls, name, promised))


def _promised(settings: Settings) -> list[Agreement]:
    """Return the agreements of the settings; print a message and return none if one is invalid."""
    from tidegate.agreement.document import AgreementInvalid, read_agreements

    try:
        return read_agreements(settings.pipeline.agreement_places)
    except AgreementInvalid as wrong:
        print(f"[pipeline] agreements cannot be read: {wrong}", file=sys.stderr)
        return []


async def _once(
    output: Output, urls: Sequence[str], name: str | None, promised: Sequence[Agreement]
) -> None:
    async with opened(urls) as store:
        rows = chosen(await standings(store, time.time(), promised), name)
    if output.as_json:
        output.json([as_json(row) for row in rows])
    elif rows and output.on_terminal:
        output.console.print(_view(rows, output.console.width, name is not None))
    elif rows:
        output.table(COLUMNS, [cells(row) for row in rows])
        for row in rows if name is not None else []:
            for one in row.evidence:
                output.line(f"  {harmless(one)}")
    if not rows:
        if not output.as_json:
            output.line("there is no agreement that anybody keeps here", style="dim")
        raise typer.Exit(NOTHING_THERE)


async def _watched(
    output: Output, urls: Sequence[str], name: str | None, promised: Sequence[Agreement]
) -> None:
    if not output.on_terminal:
        async for rows in _looks(urls, name, promised):
            if output.as_json:
                output.json([as_json(row) for row in rows], one_line=True)
            else:
                output.table(COLUMNS, [cells(row) for row in rows])
        return
    with Live(console=output.console, auto_refresh=False) as live:
        async for rows in _looks(urls, name, promised):
            live.update(_view(rows, output.console.width, name is not None), refresh=True)


def _view(rows: Sequence[Row], width: int, in_full: bool) -> Group:
    """Return a table, with the evidence below it, because sentences are too long for cells."""
    table = terminal_table(COLUMNS[:-1], [cells(row)[:-1] for row in rows], width=width)
    lines = []
    for row in rows:
        style = _STYLES.get(row.state, "dim")
        evidence = row.evidence if in_full else row.evidence[:1]
        lines += [Text(f"{row.agreement}: {harmless(one)}", style=style) for one in evidence]
        if row.reduced:
            lines.append(Text(f"{row.agreement}: {harmless(_offer(row))}"))
        if row.doing:
            lines.append(Text(f"{row.agreement}: {harmless(row.doing)}", style="dim"))
    return Group(table, *lines)


async def _looks(
    urls: Sequence[str], name: str | None, promised: Sequence[Agreement]
) -> AsyncIterator[list[Row]]:
    async with opened(urls) as store:
        while True:
            yield chosen(await standings(store, time.time(), promised), name)
            await asyncio.sleep(_LOOK_S)


async def standings(
    store: PostgresStore, now: float, promised: Sequence[Agreement] = ()
) -> list[Row]:
    """Return the status of every agreement, by name.

    Include agreements of services that are not yet judged, and those in the settings that no leader
    evaluates.
    """
    from tidegate.agreement.document import AgreementInvalid, parse_agreement
    from tidegate.agreement.kept_standing import KeptStanding

    services = await store.services()
    hosted = {service.spec.name for service in services}
    rows: dict[tuple[str, str], Row] = {}
    for document in (await store.standings()).values():
        kept = KeptStanding.from_json(document)
        # The status of a deleted subject stays in the store, so that a new deployment resumes its
        # budget.
        if kept is not None and await _is_there(store, kept, hosted):
            row = row_of(kept, now, await _last_decision(store, kept, now))
            rows[row.agreement, row.governs] = row
    judged = {row.governs for row in rows.values()}
    for service in services:
        if f"http {service.spec.name}" in judged:
            continue
        try:
            agreement = parse_agreement(service.spec.agreement, service.spec.name).name
        except AgreementInvalid:
            agreement = service.spec.name
        rows[agreement, service.spec.name] = Row(
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


def unjudged(agreement: Agreement, hosted: Iterable[str], queues: Iterable[str]) -> Row:
    """Return the row of an agreement in the settings that no leader evaluates, with a reason."""
    if agreement.http is not None:
        why = f"nothing is hosted here as {agreement.http}"
        if agreement.http in hosted:
            why = f"{agreement.http} is hosted under another agreement"
        return Row(agreement.name, f"http {agreement.http}", _NOT_JUDGED, doing=why)
    why = f"no queue is called {agreement.queue}"
    if any(map(agreement.governs_queue, queues)):
        why = "no node that leads knows of it: is it in the settings of the nodes, too?"
    return Row(agreement.name, f"queue {agreement.queue}", _NOT_JUDGED, doing=why)


async def _is_there(store: PostgresStore, kept: KeptStanding, hosted: set[str]) -> bool:
    if kept.http is not None:
        return kept.http in hosted
    return await store.find_queue(None, kept.queue) is not None


def row_of(kept: KeptStanding, now: float, decided: str = "") -> Row:
    """Return the row of a stored status; `decided` is the text of the last decision."""
    from tidegate.agreement.evaluation import SEVERITY

    standing = kept.standing
    silent = kept.is_silent(now)
    worst_first = sorted(kept.promises, key=lambda one: -SEVERITY.index(one.verdict))
    return Row(
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
        doing=f"nobody has judged it for {spoken_duration(now - kept.at)}"
        if silent
        else kept.doing or decided,
        judged_at=kept.at,
        reduced=kept.reduced,
    )


async def _last_decision(store: PostgresStore, kept: KeptStanding, now: float) -> str:
    import msgspec

    from tidegate.core.hosting import decided_about
    from tidegate.core.rule_words import in_words
    from tidegate.core.steering import Decision
    from tidegate.core.steering_words import sentence

    about = kept.queue or "" if kept.http is None else decided_about(kept.http)
    for document in await store.decisions(about, _DECISIONS_READ):
        decision = msgspec.json.decode(document, type=Decision)
        # Transitions of a promise are evidence and not a reaction.
        if decision.loop == "agreement" and not decision.actions:
            continue
        said = ", ".join(map(sentence, decision.actions)) or decision.reason
        said = said or in_words(decision.rule)
        return f"{said} ({spoken_duration(now - decision.at)} ago)"
    return ""


def chosen(rows: list[Row], name: str | None) -> list[Row]:
    """Return the rows whose agreement or subject has the name; raise `NotFound` if none has."""
    if name is None:
        return rows
    found = [row for row in rows if name in (row.agreement, row.governs.partition(" ")[2])]
    if not found:
        there = f"there is {', '.join(row.agreement for row in rows)}" if rows else "there is none"
        raise NoSuch(f"no agreement is called {name!r}: {there}")
    return found


def cells(row: Row) -> list[Cell]:
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


def _offer(row: Row) -> str:
    """Return the text about a reduced offer; empty if nothing is reduced."""
    return row.reduced and f"reduced: {row.reduced}"


def as_json(row: Row) -> dict[str, Any]:
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
