"""How many machines to keep warm, and what that follows from."""

from __future__ import annotations

import math

from tidegate.report.chart import Section, Table
from tidegate.report.figures import count, with_unit
from tidegate.report.learned import Learned

_COLUMNS = ("ingredient", "value", "unit", "seen", "says")
_MISSING = (
    "Not learned yet: run `tidegate learn` on telemetry of a time in which load grew and machines "
    "booted."
)


def provisioning_section(learned: Learned) -> Section:
    """The ingredients of NPP = ceil(sla_delta · boot_s / machine_capacity)."""
    title = "Machines to keep warm"
    rows = learned.rows("provisioning", _COLUMNS)
    if not rows:
        return Section("provisioning", title, missing=_MISSING)
    missing = [row["says"] for row in rows if row["value"] is None or math.isnan(row["value"])]
    return Section(
        "provisioning",
        title,
        "Warm machines = growth of the load × time to boot ÷ capacity of a machine, rounded up.",
        tables=[
            Table(
                "What it follows from.",
                ("ingredient", "value", "seen", "how"),
                [
                    (
                        row["ingredient"].replace("_", " "),
                        with_unit(row["value"], row["unit"]),
                        count(row["seen"]),
                        row["says"],
                    )
                    for row in rows
                ],
            )
        ],
        notes=["What was not seen is not guessed, so there is no number yet."] if missing else [],
    )
