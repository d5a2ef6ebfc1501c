"""The section on anomalies that `tidegate watch` found."""

from __future__ import annotations

import pyarrow as pa

from tidegate.pipeline.watching.batches import read_table
from tidegate.report.chart import Section, Table
from tidegate.report.figures import clock, counted, number
from tidegate.report.learned import Learned

ANOMALIES_MAX = 20
_COLUMNS = ("at", "subject", "what", "change", "since", "expected", "seen", "score")


def oddities_section(learned: Learned) -> Section | None:
    """Return the newest anomalies, or `None` if `watch` never ran on this folder."""
    folder = learned.folder / "watch"
    if not folder.is_dir():
        return None
    title = "Anomalies"
    try:
        table = read_table(folder, "anomalies")
    except (pa.ArrowException, OSError) as error:
        learned.complaints.append(f"the anomalies in {folder} cannot be read: {error}")
        return Section("anomalies", title, missing="They cannot be read; below it says why.")
    if table is None or not table.num_rows:
        return Section("anomalies", title, "`tidegate watch` found none.".replace("`", ""))
    order = [("at", "descending"), ("subject", "ascending"), ("what", "ascending")]
    newest = table.select(list(_COLUMNS)).sort_by(order).slice(0, ANOMALIES_MAX).to_pylist()
    last = newest[0]
    return Section(
        "anomalies",
        title,
        f"{counted(table.num_rows, 'change')} found by tidegate watch; the newest, at "
        f"{clock(last['at'])} UTC: {last['what']} of {last['subject']} {last['change']}, "
        f"{number(last['seen'])} where {number(last['expected'])} was expected.",
        tables=[
            Table(
                "The newest first. The score is in deviations from what was expected.",
                ("of", "what", "change", "seen", "expected", "score", "since (UTC)", "at (UTC)"),
                [
                    (
                        row["subject"],
                        row["what"],
                        row["change"],
                        number(row["seen"]),
                        number(row["expected"]),
                        number(row["score"]),
                        clock(row["since"]),
                        clock(row["at"]),
                    )
                    for row in newest
                ],
                rows_in_all=table.num_rows,
            )
        ],
    )
