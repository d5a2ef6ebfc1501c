"""Table 5.3: the phases of a request, next to Telesto's."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate.lab.bench.bars import Bar
from tidegate.lab.report.figures import draw_shares
from tidegate.lab.report.section import Drawing, Section
from tidegate.lab.telesto.mix import MixOptions
from tidegate.lab.telesto.phases import PhaseTable
from tidegate.lab.telesto.trial import Plan, Progress, Setup, Trial, disturbances, run_trial
from tidegate.report.chart import Table

OFF_BY_MAX = 0.02
# The report prints "9.574 µs" for the database; the shares next to it show that 9,574 is meant.
PAPER_US = {
    "waiting for client": 79.0,
    "parsing": 14.0,
    "store": 9574.0,
    "responding": 22.0,
}
PAPER_STORE_SHARE = 0.988


def measure(clients: int, plan: Plan, progress: Progress) -> Trial:
    """Measure the default mix with its phases."""
    setup = Setup(f"phases, {clients} clients", MixOptions(clients=clients))
    return run_trial(setup, plan, progress)


def phases_section(trial: Trial, folder: Path) -> Section:
    """Return the section with the table of phases and its figure."""
    table = trial.phases
    ours = _ours_us(table)
    draw_shares(
        {
            "Telesto": _shares(PAPER_US),
            "Tidegate, per request": _shares(ours, without=("waiting for a message",)),
            "Tidegate, inside the node": _shares(
                ours, without=("waiting for a message", "waiting for client")
            ),
        },
        folder / "phases.png",
        title="Where the time of a request goes",
        x_label="share of the time, without the wait for a message",
    )
    store_share = table.store_share
    return Section(
        name="phases",
        title="Phases of a request",
        source="Telesto §5.5.2, table 5.3",
        paper=(
            "98.8 % of a worker's time is spent waiting for the database; about half of a response "
            "time is the network."
        ),
        ours=(
            f"{100 * (store_share or 0):.1f} % of the time inside the node is waiting for the "
            f"store, {100 * (table.store_share_with_client or 0):.1f} % of the cycle as a "
            f"connection sees it. A put waits {table.store_us_per_put / 1e3:.2f} ms for a commit "
            f"that it shares with {max(table.messages_per_commit - 1, 0):.1f} others; reads never "
            "wait for the store."
        ),
        drawings=[
            Drawing(
                "phases.png",
                "Telesto's worker waits for the next request of anyone; our connection waits for "
                "its own client, on the same two cores as the node: hence the third bar.",
            )
        ],
        tables=[_table(table, ours), _worker_table(table)],
        bars=[
            Bar(
                "phases add up to the node's total, off by",
                None if table.sum_over_total is None else abs(table.sum_over_total - 1),
                OFF_BY_MAX,
                "×",
                at_most=True,
            ),
            Bar(
                "the node's total is what the clients' counts say, off by",
                None if table.clients_over_total is None else abs(table.clients_over_total - 1),
                OFF_BY_MAX,
                "×",
                at_most=True,
            ),
        ],
        notes=[
            "A cycle runs from the end of one answer to the end of the next, on connections that "
            "ask one thing at a time. Bytes that wait in a socket while the node is busy count as "
            "waiting for the client; waiting in line for a commit counts as store, for the turn "
            "to be answered as responding.",
            "The clients' total is clients × seconds / answers: it knows nothing of the node's "
            "clocks.",
            *disturbances([trial]),
        ],
        data={"phases": msgspec.to_builtins(table), "store_share": store_share},
    )


def _ours_us(table: PhaseTable) -> dict[str, float]:
    return {
        "waiting for client": table.wait_client_us,
        "parsing": table.parse_us,
        "store": table.store_us,
        "waiting for a message": table.wait_message_us,
        "responding": table.respond_us,
    }


def _shares(parts_us: dict[str, float], without: tuple[str, ...] = ()) -> dict[str, float]:
    kept = {name: part for name, part in parts_us.items() if name not in without}
    whole = sum(kept.values()) or 1.0
    return {name: part / whole for name, part in kept.items()}


def _table(table: PhaseTable, ours: dict[str, float]) -> Table:
    shares = _shares(ours, without=("waiting for a message",))
    paper = _shares(PAPER_US)

    def cells(name: str) -> list[str]:
        theirs = PAPER_US.get(name)
        return [
            name,
            "–" if theirs is None else f"{theirs:,.0f}",
            "–" if theirs is None else f"{100 * paper[name]:.2f} %",
            f"{ours[name]:,.1f}",
            f"{100 * shares[name]:.2f} %" if name in shares else "–",
        ]

    return Table(
        f"Mean of {table.requests:,} requests, microseconds; shares without the wait for a message",
        ["phase", "Telesto µs", "Telesto", "Tidegate µs", "Tidegate"],
        [
            *(cells(name) for name in ours),
            ["sum", f"{sum(PAPER_US.values()):,.0f}", "", f"{table.sum_us:,.1f}", ""],
            ["total measured by the node", "–", "", f"{table.total_us:,.1f}", ""],
            ["total by the clients' counts", "–", "", f"{table.total_by_clients_us:,.1f}", ""],
        ],
    )


def _worker_table(table: PhaseTable) -> Table:
    return Table(
        "The worker: Telesto had 25 threads, a node is one process with one event loop",
        ["", "Telesto", "Tidegate"],
        [
            ["idle before a request, µs", "79", f"{table.worker_idle_us:,.1f}"],
            ["busy", "–", f"{100 * table.worker_busy_share:.0f} %"],
            ["commits per second", "–", f"{table.commits_per_s:,.0f}"],
            ["messages per commit", "1", f"{table.messages_per_commit:.1f}"],
        ],
    )
