"""Options that set the prefetch goal of a queue's consumers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tidegate.cli.asking import duration_text
from tidegate.core.errors import InvalidValue
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.prefetch_words import KEEP_UP, by_hand, changed, given_back

_PANEL = "Prefetch"

PrefetchRateOption = Annotated[
    str | None,
    typer.Option(
        "--prefetch-rate",
        metavar="RATE",
        rich_help_panel=_PANEL,
        help="Steer prefetch so that this much arrives at each consumer, such as 400/s.",
    ),
]
PrefetchKeepUpOption = Annotated[
    bool,
    typer.Option(
        "--prefetch-keep-up",
        rich_help_panel=_PANEL,
        help="Steer prefetch so that each consumer gets what its handler can do, and no stock.",
    ),
]
PrefetchManualOption = Annotated[
    int | None,
    typer.Option(
        "--prefetch-manual",
        metavar="N",
        rich_help_panel=_PANEL,
        help="This prefetch for each, by hand.",
    ),
]
PrefetchAutoOption = Annotated[
    bool,
    typer.Option(
        "--prefetch-auto", rich_help_panel=_PANEL, help="No longer by hand: as it was before."
    ),
]
PrefetchOffOption = Annotated[
    bool,
    typer.Option(
        "--prefetch-off",
        rich_help_panel=_PANEL,
        help="Steer no more: each consumer has the prefetch that it asks for.",
    ),
]
SettleOption = Annotated[
    str | None,
    typer.Option(
        parser=duration_text,
        metavar="DURATION",
        rich_help_panel=_PANEL,
        help="Until the rate is there.",
    ),
]
OvershootOption = Annotated[
    str | None,
    typer.Option(
        metavar="PART", rich_help_panel=_PANEL, help="How far it may go beyond, such as 5%."
    ),
]
PrefetchModelOption = Annotated[
    str | None,
    typer.Option(
        "--prefetch-model",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="How its consumers answer: a file of `tidegate tune prefetch`.",
    ),
]


def _base(before: PrefetchGoal | None, manual: int | None) -> PrefetchGoal:
    """Return the goal to change; without one, a manual goal that --prefetch-auto removes."""
    if before is not None:
        return before
    return PrefetchGoal() if manual is None else by_hand(None, manual)


@dataclass(frozen=True)
class GoalOptions:
    """The prefetch options of one command line."""

    rate: PrefetchRateOption = None
    keep_up: PrefetchKeepUpOption = False
    manual: PrefetchManualOption = None
    auto: PrefetchAutoOption = False
    off: PrefetchOffOption = False
    settle: SettleOption = None
    overshoot: OvershootOption = None
    model: PrefetchModelOption = None

    def __post_init__(self) -> None:
        goals = (self.rate is not None, self.keep_up, self.off)
        hands = (self.manual is not None, self.auto, self.off)
        if sum(goals) > 1 or sum(hands) > 1:
            raise InvalidValue(
                "--prefetch-rate, --prefetch-keep-up and --prefetch-off: one of them; and of "
                "--prefetch-manual, --prefetch-auto and --prefetch-off"
            )
        if self.off and any((self.settle, self.overshoot, self.model)):
            raise InvalidValue(
                "--prefetch-off ends the steering, so --settle, --overshoot and --prefetch-model "
                "say nothing beside it: leave them out, or say --prefetch-rate 400/s instead"
            )

    @property
    def are_given(self) -> bool:
        return self != GoalOptions()

    def changed(self, before: PrefetchGoal | None, queue: str) -> PrefetchGoal | None:
        """Return the new prefetch goal of the queue; None removes the goal."""
        if self.off:
            return None
        changes: dict[str, Any] = {}
        if self.rate is not None or self.keep_up:
            changes["rate"] = KEEP_UP if self.keep_up else self.rate
        for key in ("settle", "overshoot", "model", "manual"):
            value = getattr(self, key)
            if value is not None:
                changes[key] = value
        if before is None and not changes.keys() & {"rate", "manual"}:
            raise InvalidValue(
                "prefetch is not steered here: say what to, with --prefetch-rate 400/s, "
                "--prefetch-keep-up or --prefetch-manual N"
            )
        goal = changed(_base(before, self.manual), changes)
        if self.auto:
            back = given_back(goal)
            if back is None:
                return None
            goal = back
        if self.model is not None and goal.model is not None:
            doubts = goal.model.doubts(queue, "tidegate")
            if doubts:
                print(f"{self.model}: {doubts}", file=sys.stderr)
        return goal


NO_GOAL = GoalOptions()
