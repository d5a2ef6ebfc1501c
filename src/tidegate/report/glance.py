"""The service level at a glance: how each agreement stands, and what is left of its budget."""

from __future__ import annotations

from tidegate.report.chart import Section
from tidegate.report.learned import Learned

_DECLARE = (
    "No agreement was declared, so nothing was promised. Write one into a file, such as "
    '`orders.toml` with `name = "orders"`, `queue = "orders.*"` and below `[metrics.wait_p99]` '
    '`breach = "6s"`; name it in `pipeline.agreements` or with `--agreement`, and run `tidegate '
    "learn` again."
)


def glance_section(learned: Learned) -> Section:
    """A card for each agreement; how to declare one if there are none."""
    return Section("glance", "At a glance", missing=_DECLARE)
