"""The section on models: every learned model, accepted or refused with the reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tidegate.report.charts import (
    AMBER,
    BLUE,
    GREY,
    SOFT,
    Chart,
    ReportSection,
    ReportTable,
    clock,
    count,
    counted,
    duration,
    label_inside,
    moment,
    number,
    number_axis,
    percent,
    rate,
    slices,
    with_unit,
)
from tidegate.report.charts import sentence as ended
from tidegate.telemetry.learned import LearnedModels, Row, grouped, read_table
from tidegate.telemetry.models import ModelFile, StoredModel

_ROWS_MAX = 30
# The end of a parameter's name gives its unit.
_UNITS = {"per_s2": "msg/s²", "per_s": "msg/s"}


def models_section(learned: LearnedModels) -> ReportSection:
    """Return a table of the newest models of each kind."""
    files = list(learned.model_files())
    if not any(file.models for file in files):
        return ReportSection(
            "models",
            "Models",
            missing="No model has been learned: run `tidegate learn` on some hours of telemetry.",
        )
    learned_of = [file for file in files if file.models]
    accepted = sum(model.accepted for file in learned_of for model in file.models)
    total = sum(len(file.models) for file in learned_of)
    return ReportSection(
        "models",
        "Models",
        f"{count(accepted)} of {counted(total, 'model')} "
        f"{'was' if accepted == 1 else 'were'} accepted. The newest accepted model of each subject "
        "is what loops use; a refused one is kept and not used.",
        tables=[_table(file) for file in learned_of],
    )


def _table(file: ModelFile) -> ReportTable:
    ordered = sorted(
        file.models, key=lambda model: (not model.accepted, -model.rows, model.subject)
    )
    # Show refused and accepted models, even if there are many of one.
    refused = [model for model in ordered if not model.accepted][: _ROWS_MAX // 3]
    accepted = [model for model in ordered if model.accepted][: _ROWS_MAX - len(refused)]
    return ReportTable(
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


def _summary(models: Sequence[StoredModel]) -> str:
    reasons = Counter(model.reason for model in models if not model.accepted)
    accepted = sum(model.accepted for model in models)
    refused = sum(reasons.values())
    return f"{count(accepted)} accepted, {count(refused)} refused."


def _named(numbers: dict[str, float]) -> str:
    return ", ".join(
        f"{_name_text(name)} {_format_value(name, value)}" for name, value in numbers.items()
    )


def _name_text(name: str) -> str:
    for ending in (*_UNITS, "s"):
        name = name.removesuffix(f"_{ending}")
    return name.replace("r2", "R²").replace("rmse", "RMSE").replace("_", " ")


def _format_value(name: str, value: float) -> str:
    if name.startswith("r2") or name in ("skill", "coverage", "confidence"):
        return percent(value)
    if name.endswith("_per_s2"):
        return f"{number(value)} msg/s²"
    if name.endswith("_per_s"):
        return rate(value)
    return duration(value) if name.endswith("_s") else number(value)


# Charts of identified consumer groups: how prefetch affects the arrival rate.
#
# The model is y(k+1) = a·y(k) + b·u(k) + offset. The line shows the rate at which it settles at
# each prefetch, within its linear range. `learn` has computed it.


_LEVELS_MAX = 60


# The number of charts; the section on models lists all groups.
GROUPS_MAX = 6

_MODEL_COLUMNS = (
    *("group", "accepted", "reason", "a", "b", "offset_per_s", "prefetch_low", "prefetch_high"),
    *("r2_test", "rmse_test_per_s", "rows_train", "rows_test"),
)
_LEVEL_COLUMNS = (
    *("group", "prefetch", "rows", "arrival_per_s", "arrival_per_s_stddev"),
    *("settled_per_s", "in_linear_range"),
)


@dataclass(frozen=True)
class PrefetchLevel:
    """The measured rate at one prefetch, and the rate that the model predicts."""

    prefetch: float
    samples: int
    mean_per_s: float
    deviation_per_s: float
    # `None` if the model does not settle.
    settled_per_s: float | None
    in_linear_range: bool


@dataclass(frozen=True)
class ConsumerModel:
    """An identified model, or the reason for its refusal."""

    group: str
    accepted: bool
    reason: str
    a: float
    b: float
    # The constant term: the model describes deviations from an operating point.
    offset_per_s: float
    high: float
    r2_test: float
    rmse_test_per_s: float
    samples: int

    @property
    def formula(self) -> str:
        """The model's equation with its numbers."""
        formula = f"y(k+1) = {number(self.a)} y(k) + {number(self.b)} u(k)"
        if not self.offset_per_s or not math.isfinite(self.offset_per_s):
            return formula
        sign = "+" if self.offset_per_s > 0 else "−"
        return f"{formula} {sign} {number(abs(self.offset_per_s))}"


def consumers_section(learned: LearnedModels) -> ReportSection:
    """Return the models of the consumer groups with the most samples."""
    section = ReportSection("consumers", "How consumers answer to prefetch")
    rows = learned.rows("identification", _MODEL_COLUMNS, order=("group",))
    if not rows:
        return replace(
            section,
            missing="No consumer group has been identified: that needs samples of consumers whose "
            "prefetch changed. Let one change with `tidegate prefetch`, then run `tidegate learn`.",
        )
    models = sorted(map(_model, rows), key=lambda model: (-model.accepted, -model.samples))
    shown = models[:GROUPS_MAX]
    levels = grouped(
        learned.rows(
            "prefetch_levels",
            _LEVEL_COLUMNS,
            ("group", [model.group for model in shown]),
            ("group", "prefetch"),
        ),
        "group",
    )
    accepted = sum(model.accepted for model in models)
    sentence = (
        f"{counted(accepted, 'model')} of {counted(len(models), 'consumer group')} "
        f"{'was' if accepted == 1 else 'were'} accepted: u is the prefetch, y the arrival rate."
    )
    if len(models) > len(shown):
        sentence += f" Drawn are the {len(shown)} seen most, accepted ones first."
    return replace(
        section,
        sentence=sentence,
        charts=[
            model_chart(model, [_level(row) for row in levels[model.group]])
            for model in shown
            if model.group in levels
        ],
    )


def _model(row: Row) -> ConsumerModel:
    return ConsumerModel(
        group=row["group"],
        accepted=row["accepted"],
        reason=row["reason"],
        a=_or_nan(row["a"]),
        b=_or_nan(row["b"]),
        offset_per_s=_or_nan(row["offset_per_s"]),
        high=_or_nan(row["prefetch_high"]),
        r2_test=_or_nan(row["r2_test"]),
        rmse_test_per_s=_or_nan(row["rmse_test_per_s"]),
        samples=row["rows_train"] + row["rows_test"],
    )


def _level(row: Row) -> PrefetchLevel:
    settled = _or_nan(row["settled_per_s"])
    return PrefetchLevel(
        prefetch=row["prefetch"],
        samples=row["rows"],
        mean_per_s=row["arrival_per_s"],
        deviation_per_s=row["arrival_per_s_stddev"] or 0.0,
        settled_per_s=settled if math.isfinite(settled) else None,
        in_linear_range=row["in_linear_range"],
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def model_chart(model: ConsumerModel, levels: Sequence[PrefetchLevel]) -> Chart:
    """Return mean and spread at each prefetch with the model's line; `levels` is not empty."""
    shown = [part[0] for part in slices(levels, _LEVELS_MAX)]

    def draw(axes: Axes) -> None:
        u = [level.prefetch for level in shown]
        mean = [level.mean_per_s for level in shown]
        spread = [level.deviation_per_s for level in shown]
        inside = [level.in_linear_range for level in shown]
        axes.vlines(
            u,
            [max(m - s, 0.0) for m, s in zip(mean, spread, strict=True)],
            [m + s for m, s in zip(mean, spread, strict=True)],
            color=BLUE.light,
            alpha=0.35,
            linewidth=1.6,
        )
        for within, colour in ((True, BLUE), (False, GREY)):
            axes.plot(
                [x for x, one in zip(u, inside, strict=True) if one is within],
                [y for y, one in zip(mean, inside, strict=True) if one is within],
                "o",
                color=colour.light,
                markersize=4.2,
            )
        highest = max(m + s for m, s in zip(mean, spread, strict=True))
        number_axis(axes, highest * 1.12)
        axes.set_xlim(min(0.0, *u), max(u) * 1.05 + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        line = [(one.prefetch, one.settled_per_s) for one in shown if one.in_linear_range]
        if all(settled is not None for _, settled in line):
            axes.plot(
                [prefetch for prefetch, _ in line],
                [settled or 0.0 for _, settled in line],
                color=AMBER.light,
                linewidth=2.0,
                linestyle="-" if model.accepted else (0, (4, 3)),
                zorder=4,
            )
        if line and model.high < max(u):
            axes.axvline(model.high, color=SOFT.light, linewidth=0.9, linestyle=(0, (2, 2)))
            label_inside(
                axes,
                f"linear up to {number(model.high)}",
                (model.high, 0.0),
                (4.0, 9.0),
                colour=SOFT,
            )

    if model.accepted:
        sentence = (
            f"{model.formula}: one more message of prefetch is worth "
            f"{rate(model.b / (1.0 - model.a))}. Of held-out data it explains "
            f"{percent(model.r2_test)}, off by {rate(model.rmse_test_per_s)} (RMSE)."
        )
    else:
        sentence = ended(f"Refused: {model.reason}")
    return Chart(
        title=model.group,
        sentence=sentence,
        measures="arrivals, msg/s, by prefetch",
        draw=draw,
        table=ReportTable(
            "Arrival rate at each prefetch: mean and standard deviation.",
            ("prefetch", "samples", "mean", "deviation", "model"),
            [
                (
                    number(level.prefetch),
                    count(level.samples),
                    rate(level.mean_per_s),
                    rate(level.deviation_per_s),
                    rate(level.settled_per_s if level.in_linear_range else None),
                )
                for level in shown
            ],
            rows_in_all=len(levels),
        ),
    )


# The section on the number of machines to keep warm, and the inputs of its formula.


_PROVISIONING_COLUMNS = ("ingredient", "value", "unit", "seen", "says")
_NAMES = {
    "sla_delta": "growth of the load",
    "boot_s": "time to boot",
    "machine_capacity_per_s": "capacity of a machine",
}
_MISSING = (
    "Not learned yet: run `tidegate learn` on telemetry of a time in which load grew and machines "
    "booted."
)


def provisioning_section(learned: LearnedModels) -> ReportSection:
    """Return the inputs of NPP = ceil(sla_delta · boot_s / machine_capacity)."""
    title = "Machines to keep warm"
    rows = learned.rows("provisioning", _PROVISIONING_COLUMNS)
    if not rows:
        return ReportSection("provisioning", title, missing=_MISSING)
    model = learned.models("provisioning").get("fleet")
    warm = model.parameters.get("warm_machines") if model and model.accepted else None
    if model is None or warm is None:
        found = "No number yet, since what was not seen is not guessed"
        sentence = ended(f"{found}: {model.reason}" if model else found)
    else:
        sentence = ended(f"{counted(int(warm), 'machine')}: {model.reason}")
    return ReportSection(
        "provisioning",
        title,
        sentence,
        tables=[
            ReportTable(
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


# The section on anomalies that `tidegate watch` found.


ANOMALIES_MAX = 20
_ANOMALY_COLUMNS = ("at", "subject", "what", "change", "since", "expected", "seen", "score")


def anomalies_section(learned: LearnedModels) -> ReportSection | None:
    """Return the newest anomalies, or `None` if `watch` never ran on this folder."""
    folder = learned.folder / "watch"
    if not folder.is_dir():
        return None
    title = "Anomalies"
    try:
        table = read_table(folder, "anomalies")
    except (pa.ArrowException, OSError) as error:
        learned.complaints.append(f"the anomalies in {folder} cannot be read: {error}")
        return ReportSection("anomalies", title, missing="They cannot be read; below it says why.")
    if table is None or not table.num_rows:
        return ReportSection("anomalies", title, "`tidegate watch` found none.".replace("`", ""))
    order = [("at", "descending"), ("subject", "ascending"), ("what", "ascending")]
    newest = table.select(list(_ANOMALY_COLUMNS)).sort_by(order).slice(0, ANOMALIES_MAX).to_pylist()
    last = newest[0]
    return ReportSection(
        "anomalies",
        title,
        f"{counted(table.num_rows, 'change')} found by tidegate watch; the newest, at "
        f"{clock(last['at'])} UTC: {last['what']} of {last['subject']} {last['change']}, "
        f"{number(last['seen'])} where {number(last['expected'])} was expected.",
        tables=[
            ReportTable(
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
