"""An agreement as TOML, so that parsing the text returns an equal agreement.

Only values that differ from their defaults are written. A warning is written as a margin if a whole
percentage gives it exactly. Comments and the order of keys of an input document are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidegate.agreement.document import OBJECTIVE, PERIOD_S, WINDOW_S, Agreement
from tidegate.agreement.metrics import Metric, Unit, kind_of, warning_point
from tidegate.agreement.promises import LEARNED, MARGIN
from tidegate.agreement.quantity_words import duration_word, plain, size_word
from tidegate.agreement.resources import Insufficient, Resources


def written(agreement: Agreement) -> str:
    """Return the TOML document of an agreement."""
    return "\n".join([*_head(agreement), *_resources(agreement.resources), *_metrics(agreement)])


def quoted(text: str) -> str:
    """Return a text as a quoted TOML string."""
    # A JSON string is a valid basic string of TOML, except for the character DEL.
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007F")


def word(unit: Unit, value: float) -> str:
    """Return a quantity as a TOML value."""
    match unit:
        case Unit.SECONDS:
            return quoted(duration_word(value))
        case Unit.BYTES:
            return quoted(size_word(value))
        case _:
            return plain(value)


def margin_word(metric: Metric) -> str | None:
    """Return the margin of a warning in whole percent; None if no whole percentage gives it."""
    kind = kind_of(metric.name)
    assert kind is not None, "a metric has a kind"
    for percent in (round(100 * MARGIN), *range(1, 100)):
        if warning_point(kind, metric.breach, percent / 100.0) == metric.warning:
            return f"{percent}%"
    return None


def _head(agreement: Agreement) -> Iterator[str]:
    yield f"name = {quoted(agreement.name)}"
    if agreement.queue is not None:
        yield f"queue = {quoted(agreement.queue)}"
    if agreement.http is not None:
        yield f"http = {quoted(agreement.http)}"
    if agreement.window_s != WINDOW_S:
        yield f"window = {word(Unit.SECONDS, agreement.window_s)}"
    if agreement.objective != OBJECTIVE:
        yield f"objective = {plain(agreement.objective)}"
    if agreement.period_s != PERIOD_S:
        yield f"period = {word(Unit.SECONDS, agreement.period_s)}"


def _resources(uses: Resources) -> Iterator[str]:
    if uses.replicas_max is not None:
        yield f"replicas = {{ min = {uses.replicas_min}, max = {uses.replicas_max} }}"
    elif uses.replicas_min != 1:
        yield f"replicas = {{ min = {uses.replicas_min} }}"
    if uses.sla_delta_per_s2 is not None:
        yield f"sla_delta = {plain(uses.sla_delta_per_s2)}"
    if uses.capacity_per_s is not None:
        yield f"capacity = {plain(uses.capacity_per_s)}"
    if uses.reconfiguration_s is not None:
        yield f"reconfiguration = {word(Unit.SECONDS, uses.reconfiguration_s)}"
    if uses.insufficient is not Insufficient.REFUSE:
        yield f"insufficient = {quoted(uses.insufficient)}"
    if uses.load_max_per_s is not None:
        yield f"load_max = {plain(uses.load_max_per_s)}"
    if uses.reduced:
        yield f"reduced = {quoted(uses.reduced)}"


def _metrics(agreement: Agreement) -> Iterator[str]:
    for metric in agreement.metrics:
        yield f"\n[metrics.{metric.name}]"
        yield f"breach = {word(metric.unit, metric.breach)}"
        if metric.learned:
            yield f"warning = {quoted(LEARNED)}"
        elif (margin := margin_word(metric)) is None:
            yield f"warning = {word(metric.unit, metric.warning)}"
        elif margin != f"{MARGIN:.0%}":
            yield f"warning = {quoted(margin)}"
        if metric.slope_per_s is not None:
            yield f"slope = {word(metric.unit, metric.slope_per_s)}"
    yield ""
