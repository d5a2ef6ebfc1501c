"""Learned models for display: the newest of each kind, with points and curves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from tidegate.console.model import ModelView
from tidegate.laws.universal_scalability import scaled
from tidegate.report.learned import Learned, NothingLearned
from tidegate.telemetry.knowledge import Model, ModelFile

MODELS_MAX = 500
POINTS_MAX = 200
_CURVE_POINTS = 60

Points = list[tuple[float, float]]


def models_learned(folder: Path) -> list[ModelView]:
    """Return the newest model of each subject, accepted or not; nothing if none was learned."""
    try:
        learned = Learned(folder)
    except NothingLearned:
        return []
    found: list[ModelView] = []
    for file in learned.model_files():
        points = _points(learned, file)
        found += [_view(file, model, points.get(model.subject, [])) for model in file.models]
        # Subjects missing from the newest run use an older model.
        newest = {model.subject for model in file.models}
        for subject, model in learned.knowledge.accepted(file.kind).items():
            if subject not in newest:
                found.append(_view(file, model, []))
    found.sort(key=lambda one: (one.kind, not one.accepted, one.subject))
    return found[:MODELS_MAX]


def _view(file: ModelFile, model: Model, points: Points) -> ModelView:
    x, y = _AXES.get(file.kind, ("", ""))
    return ModelView(
        kind=file.kind,
        version=file.version,
        subject=model.subject,
        accepted=model.accepted,
        reason=model.reason,
        learned_at=file.learned_at.timestamp(),
        since=model.from_s or None,
        until=model.to_s or None,
        rows=model.rows,
        quality=_finite(model.quality),
        parameters=_finite(model.parameters),
        points=points[:POINTS_MAX],
        curve=_curve(file.kind, model.parameters, points),
        x=x,
        y=y,
    )


_AXES = {
    "prefetch": ("prefetch", "arrivals a second"),
    "capacity": ("clients", "messages a second"),
}


def _points(learned: Learned, file: ModelFile) -> dict[str, Points]:
    """Return the measured points by subject."""
    columns = {
        "prefetch": ("prefetch_levels", "group", "prefetch", "arrival_per_s"),
        "capacity": ("capacity", "queue", "clients", "throughput_per_s"),
    }.get(file.kind)
    if columns is None:
        return {}
    table, subject, x, y = columns
    subjects = {model.subject for model in file.models}
    found: dict[str, Points] = {}
    for row in learned.rows(table, (subject, x, y), (subject, subjects), (subject, x)):
        found.setdefault(row[subject], []).append((float(row[x]), float(row[y])))
    return {name: _only_finite(points) for name, points in found.items()}


def _curve(kind: str, known: dict[str, float], points: Points) -> Points:
    """Return the model's curve over the measured range."""
    if not points:
        return []
    low, high = points[0][0], max(x for x, _ in points)
    xs = [low + (high - low) * step / _CURVE_POINTS for step in range(_CURVE_POINTS + 1)]
    if kind == "prefetch" and {"a", "b"} <= known.keys() and abs(known["a"]) < 1.0:
        offset_per_s = known.get("offset_per_s", 0.0)
        # Beyond this prefetch the model is not valid.
        xs = [x for x in xs if x <= known.get("prefetch_high", high)]
        return _only_finite((x, (known["b"] * x + offset_per_s) / (1.0 - known["a"])) for x in xs)
    if kind == "capacity" and {"rate_per_s", "contention", "coherency"} <= known.keys():
        law = (known["rate_per_s"], known["contention"], known["coherency"])
        return _only_finite((x, float(scaled(x, *law))) for x in xs)
    return []


def _finite(numbers: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _only_finite(points: Iterable[tuple[float, float]]) -> Points:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
