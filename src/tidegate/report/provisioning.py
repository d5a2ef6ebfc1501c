"""The section on the number of machines to keep warm, and the inputs of its formula."""

from __future__ import annotations

from tidegate.report.chart import Section, Table
from tidegate.report.figures import count, counted, with_unit
from tidegate.report.figures import sentence as ended
from tidegate.report.learned import Learned

_COLUMNS = ("ingredient", "value", "unit", "seen", "says")
_NAMES = {
    "sla_delta": "growth of the load",
    "boot_s": "time to boot",
    "machine_capacity_per_s": "capacity of a machine",
}
_MISSING = (
    "Not learned yet: run `tidegate learn` on telemetry of a time in which load grew and machines "
    "booted."
)


def provisioning_section(learned: Learned) -> Section:
    """Return the inputs of NPP = ceil(sla_delta · boot_s / machine_capacity)."""
    title = "Machines to keep warm"
    rows = learned.rows("provisioning", _COLUMNS)
    if not rows:
        return Section("provisioning", title, missing=_MISSING)
    model = learned.models("provisioning").get("fleet")
    warm = model.parameters.get("warm_machines") if model and model.accepted else None
    if model is None or warm is None:
        found = "No number yet, since what was not seen is not guessed"
        sentence = ended(f"{found}: {model.reason}" if model else found)
    else:
        sentence = ended(f"{counted(int(warm), 'machine')}: {model.reason}")
    return Section(
        "provisioning",
        title,
        sentence,
        tables=[
            Table(
                "Warm machines = growth × time to boot ÷ capacity of a machine, rounded up.",
                ("ingredient", "value", "seen", "how"),
                [
                    (
                        _NAMES.get(row["ingredient"]) or row["ingredient"],
                        with_unit(row["value"], row["unit"]),
                        count(row["seen"]),
                        row["says"],
                    )
                    for row in rows
                ],
            )
        ],
    )
