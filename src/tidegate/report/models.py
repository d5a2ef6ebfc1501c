"""The section on models: every learned model, accepted or refused with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidegate.report.chart import Section, Table
from tidegate.report.figures import count, counted, duration, moment, number, percent, rate
from tidegate.report.learned import Learned
from tidegate.telemetry.knowledge import Model, ModelFile

_ROWS_MAX = 30
# The end of a parameter's name gives its unit.
_UNITS = {"per_s2": "msg/s²", "per_s": "msg/s"}


def models_section(learned: Learned) -> Section:
    """Return a table of the newest models of each kind."""
    files = list(learned.model_files())
    if not any(file.models for file in files):
        return Section(
            "models",
            "Models",
            missing="No model has been learned: run `tidegate learn` on some hours of telemetry.",
        )
    learned_of = [file for file in files if file.models]
    accepted = sum(model.accepted for file in learned_of for model in file.models)
    total = sum(len(file.models) for file in learned_of)
    return Section(
        "models",
        "Models",
        f"{count(accepted)} of {counted(total, 'model')} "
        f"{'was' if accepted == 1 else 'were'} accepted. The newest accepted model of each subject "
        "is what loops use; a refused one is kept and not used.",
        tables=[_table(file) for file in learned_of],
    )


def _table(file: ModelFile) -> Table:
    ordered = sorted(
        file.models, key=lambda model: (not model.accepted, -model.rows, model.subject)
    )
    # Show refused and accepted models, even if there are many of one.
    refused = [model for model in ordered if not model.accepted][: _ROWS_MAX // 3]
    accepted = [model for model in ordered if model.accepted][: _ROWS_MAX - len(refused)]
    return Table(
        f"{file.kind}, version {file.version}, learned {moment(file.learned_at)} UTC. "
        + _summary(file.models),
        ("subject", "accepted", "parameters", "quality", "rows", "why"),
        [
            (
                model.subject,
                "yes" if model.accepted else "refused",
                _named(model.parameters),
                _named(model.quality),
                count(model.rows),
                model.reason,
            )
            for model in (*accepted, *refused)
        ],
        rows_in_all=len(file.models),
    )


def _summary(models: Sequence[Model]) -> str:
    reasons = Counter(model.reason for model in models if not model.accepted)
    accepted = sum(model.accepted for model in models)
    refused = sum(reasons.values())
    return f"{count(accepted)} accepted, {count(refused)} refused."


def _named(numbers: dict[str, float]) -> str:
    return ", ".join(f"{_words(name)} {_figure(name, value)}" for name, value in numbers.items())


def _words(name: str) -> str:
    for ending in (*_UNITS, "s"):
        name = name.removesuffix(f"_{ending}")
    return name.replace("r2", "R²").replace("rmse", "RMSE").replace("_", " ")


def _figure(name: str, value: float) -> str:
    if name.startswith("r2") or name in ("skill", "coverage", "confidence"):
        return percent(value)
    if name.endswith("_per_s2"):
        return f"{number(value)} msg/s²"
    if name.endswith("_per_s"):
        return rate(value)
    return duration(value) if name.endswith("_s") else number(value)
