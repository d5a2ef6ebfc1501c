"""An agreement with its learned warnings (`tidegate learn`, job `warnings`).

The model says how fast each promise got worse and how long remedies took. The position of the
warning is computed from it for the agreement as it is now (agreement.learned_warnings), because the
agreement may have changed since. Without a model the default margin stays.
"""

from __future__ import annotations

from tidegate.agreement.document import Agreement
from tidegate.agreement.learned_warnings import with_learned_warnings
from tidegate.telemetry.knowledge import Model

_SLOPE = "slope_"


def with_learned(agreement: Agreement, model: Model | None) -> tuple[Agreement, list[str]]:
    """Return the agreement with its learned warnings moved, and sentences that say why."""
    if not any(metric.learned for metric in agreement.metrics):
        return agreement, []
    helped_s = None if model is None else model.parameters.get("reconfiguration_s")
    if model is None or helped_s is None:
        return agreement, ["Nothing was learned yet: warnings lie by the default margin."]
    changed, lessons = with_learned_warnings(agreement, learned_slopes(model), helped_s)
    return changed, [f"{lesson.metric}: {lesson.because}." for lesson in lessons]


def learned_slopes(model: Model) -> dict[str, float]:
    """Return how fast each metric got worse, by name of the metric."""
    return {
        name.removeprefix(_SLOPE): slope
        for name, slope in model.parameters.items()
        if name.startswith(_SLOPE)
    }
