"""What the time of a request is spent on (Telesto's table 5.3), with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from tidegate.core.harmless import harmless
from tidegate.report.axes import SMALL
from tidegate.report.chart import Chart, Section, Table
from tidegate.report.figures import count, duration, percent
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
_ON_LABEL_FROM = 0.12


_COLUMNS = ("verb", "phase")


@dataclass(frozen=True)
class Phase:
    """One phase of one kind of request."""

    verb: str
    phase: str
    requests: float
    mean_us: float
    low_us: float
    high_us: float
    share: float


def phases_section(learned: Learned) -> Section:
    """Where requests spend their time."""
    title = "Phases of a request"
    rows = learned.rows("phases", _COLUMNS)
    if not rows:
        return Section(
            "phases",
            title,
            missing="No request was sampled: nodes sample those of clients that ask one thing at "
            "a time. Let some work, then run `tidegate learn`.",
        )
    return Section("phases", title, charts=[])


def words_of(phase: str) -> str:
    """How people call a phase."""
    return _WORDS.get(phase, phase.replace("_", " "))


def phase_chart(phases: Sequence[Phase]) -> Chart:
    """A bar for each verb, cut into its phases; phases must not be none."""
    verbs = sorted(
        {phase.verb for phase in phases},
        key=lambda verb: (-max(one.requests for one in phases if one.verb == verb), verb),
    )
    longest = max(phases, key=lambda phase: (phase.share, phase.verb))

    def draw(axes: Axes) -> None:
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        for row, verb in enumerate(reversed(verbs)):
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
        axes.set_yticks(range(len(verbs)), [harmless(verb) for verb in reversed(verbs)])
        axes.set_ylim(-0.6, len(verbs) - 0.4)
        axes.set_xlim(0.0, 1.0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
        axes.tick_params(axis="x", length=0)
        axes.tick_params(axis="y", labelcolor=SOFT.light)

    return Chart(
        title="Where the time of a request goes",
        sentence=(
            f"{percent(longest.share)} of a {longest.verb} is {words_of(longest.phase)}: "
            f"{duration(longest.mean_us / 1e6)} of "
            f"{duration(longest.mean_us / longest.share / 1e6)}."
        ),
        measures="share of the time, by request",
        draw=draw,
        label_in=0.25,
        height_in=0.8 + 0.42 * len(verbs),
        table=phase_table(phases, verbs),
    )


def phase_table(phases: Sequence[Phase], verbs: Sequence[str]) -> Table:
    """Every phase with its interval."""
    return Table(
        "Mean time of each phase, with the 95 % interval of the mean.",
        ("request", "phase", "mean", "95 % interval", "share", "requests"),
        [
            (
                phase.verb,
                words_of(phase.phase),
                duration(phase.mean_us / 1e6),
                f"{duration(phase.low_us / 1e6)} to {duration(phase.high_us / 1e6)}",
                percent(phase.share),
                count(phase.requests),
            )
            for verb in verbs
            for phase in phases
            if phase.verb == verb
        ],
    )
