"""The section on the phases of a request (table 5.3 of the Telesto paper), with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from tidegate.core.harmless import harmless
from tidegate.report.axes import SMALL
from tidegate.report.chart import Chart, Section, Table
from tidegate.report.figures import count, counted, duration, percent
from tidegate.report.learned import Learned
from tidegate.report.palette import AMBER, BLUE, BRICK, GREY, INK, PAGE, PALE, SOFT, VIOLET, Colour

_COLOURS: dict[str, Colour] = {
    "wait_client": GREY,
    "parse": AMBER,
    "store": BLUE,
    "wait_message": PALE,
    "respond": BRICK,
}
_WORDS = {
    "wait_client": "waiting for client",
    "parse": "parsing",
    "store": "store",
    "wait_message": "waiting for a message",
    "respond": "responding",
}
_ORDER = {phase: place for place, phase in enumerate(_WORDS)}
_ON_LABEL_FROM = 0.12


_COLUMNS = ("verb", "phase", "requests", "mean_us", "low_us", "high_us", "share")
_IDLE_COLUMNS = ("node", "seconds", "idle", "idle_low", "idle_high")
# The verb under which the job sums all verbs.
_ALL = "all"
# The number of verbs drawn besides the sum; the table has all of them.
_VERBS_MAX = 6
_NAME_MAX = 22
_INCHES_PER_LETTER = 0.08
_KEY_COLUMNS = 3


@dataclass(frozen=True)
class Phase:
    """One phase of the requests of one verb."""

    verb: str
    phase: str
    requests: float
    mean_us: float
    # `None` for a single request, which has no interval.
    low_us: float | None
    high_us: float | None
    share: float


def phases_section(learned: Learned) -> Section:
    """Return where requests spend their time, and how idle the nodes were."""
    title = "Phases of a request"
    phases = [
        Phase(**row)
        for row in learned.rows("phases", _COLUMNS)
        if row["share"] is not None and row["share"] == row["share"]
    ]
    idle = _idle_table(learned)
    if not phases:
        return Section(
            "phases",
            title,
            tables=[idle] if idle else [],
            missing="No request was sampled: nodes sample those of clients that ask one thing at "
            "a time. Let some work, then run `tidegate learn`.",
        )
    phases.sort(key=lambda phase: (_ORDER.get(phase.phase, len(_ORDER)), phase.phase))
    verbs = _verbs(phases)
    return Section(
        "phases",
        title,
        charts=[phase_chart(phases, verbs)],
        tables=[idle] if idle else [],
    )


def _verbs(phases: Sequence[Phase]) -> list[str]:
    """Return the verbs: the sum of all first, then the most frequent."""
    requests = {phase.verb: phase.requests for phase in phases}
    return sorted(requests, key=lambda verb: (verb != _ALL, -requests[verb], verb))


def _idle_table(learned: Learned) -> Table | None:
    rows = learned.rows("idleness", _IDLE_COLUMNS, order=("node",))
    if not rows:
        return None
    return Table(
        "How much of the time each node had nothing to do, with the 95 % interval.",
        ("node", "idle", "95 % interval", "seen for"),
        [
            (
                row["node"],
                percent(row["idle"]),
                f"{percent(row['idle_low'])} to {percent(row['idle_high'])}",
                duration(row["seconds"]),
            )
            for row in rows
        ],
    )


def words_of(phase: str) -> str:
    """Return the name of a phase in prose."""
    return _WORDS.get(phase, phase.replace("_", " "))


def phase_chart(phases: Sequence[Phase], verbs: Sequence[str]) -> Chart:
    """Return a bar for each verb, divided into phases; `phases` must not be empty."""
    longest = max(
        (phase for phase in phases if phase.verb == verbs[0]), key=lambda phase: phase.share
    )
    drawn = verbs[: _VERBS_MAX + (verbs[0] == _ALL)]
    names = [_short(harmless(verb)) for verb in drawn]
    ticks_in = max(0.66, 0.14 + _INCHES_PER_LETTER * max(map(len, names)))
    left_out = len(verbs) - len(drawn)
    of = "the time of all requests" if longest.verb == _ALL else f"a {longest.verb}"

    def draw(axes: Axes) -> None:
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        for row, verb in enumerate(reversed(drawn)):
            left = 0.0
            for phase in (one for one in phases if one.verb == verb):
                colour = _COLOURS.get(phase.phase, VIOLET)
                axes.barh(
                    row,
                    phase.share,
                    left=left,
                    height=0.62,
                    color=colour.light,
                    edgecolor=PAGE.light,
                    linewidth=0.8,
                )
                if phase.share >= _ON_LABEL_FROM:
                    axes.text(
                        left + phase.share / 2,
                        row,
                        f"{words_of(phase.phase)} {percent(phase.share)}"
                        if phase.share >= 0.42
                        else percent(phase.share),
                        ha="center",
                        va="center",
                        fontsize=SMALL,
                        color=(INK if colour is PALE else PAGE).light,
                    )
                left += phase.share
        axes.set_yticks(range(len(drawn)), names[::-1])
        axes.set_ylim(-0.6, len(drawn) - 0.4)
        axes.set_xlim(0.0, 1.0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
        axes.tick_params(axis="x", length=0)
        axes.tick_params(axis="y", labelcolor=SOFT.light)
        _draw_key(axes, list(dict.fromkeys(phase.phase for phase in phases)), ticks_in)

    return Chart(
        title="Where the time of a request goes",
        sentence=(
            f"{percent(longest.share)} of {of} is {words_of(longest.phase)}: "
            f"{duration(longest.mean_us / 1e6)} of "
            f"{duration(longest.mean_us / longest.share / 1e6)} on average."
            + (f" {_not_drawn(left_out)} in the numbers below." if left_out else "")
        ),
        measures="share of the time, by request",
        draw=draw,
        label_in=0.25,
        ticks_in=ticks_in,
        foot_in=0.4,
        height_in=1.2 + 0.4 * len(drawn),
        table=phase_table(phases, verbs),
    )


def _short(name: str) -> str:
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"


def _not_drawn(left_out: int) -> str:
    return f"{counted(left_out, 'rarer request')} {'is' if left_out == 1 else 'are'}"


def _draw_key(axes: Axes, phases: Sequence[str], ticks_in: float) -> None:
    """Draw the key of colours in rows below the bars."""
    for row in range(0, len(phases), _KEY_COLUMNS):
        for column, phase in enumerate(phases[row : row + _KEY_COLUMNS]):
            x_points, y_points = (
                128.0 * column - (72.0 * ticks_in - 11.0),
                -30.0 - 13.0 * row / _KEY_COLUMNS,
            )
            for words, offset_points, colour in (
                ("■", x_points, _COLOURS.get(phase, VIOLET)),
                (harmless(words_of(phase)), x_points + 11.0, SOFT),
            ):
                axes.annotate(
                    words,
                    (0.0, 0.0),
                    xycoords="axes fraction",
                    xytext=(offset_points, y_points),
                    textcoords="offset points",
                    va="center",
                    fontsize=SMALL,
                    color=colour.light,
                    annotation_clip=False,
                )


def phase_table(phases: Sequence[Phase], verbs: Sequence[str]) -> Table:
    """Return a table of every phase with its interval."""
    return Table(
        "Mean time of each phase, with the 95 % interval of the mean.",
        ("request", "phase", "mean", "95 % interval", "share", "requests"),
        [
            (
                phase.verb,
                words_of(phase.phase),
                _time(phase.mean_us),
                f"{_time(phase.low_us)} to {_time(phase.high_us)}",
                percent(phase.share),
                count(phase.requests),
            )
            for verb in verbs
            for phase in phases
            if phase.verb == verb
        ],
    )


def _time(time_us: float | None) -> str:
    return duration(None if time_us is None else time_us / 1e6)
