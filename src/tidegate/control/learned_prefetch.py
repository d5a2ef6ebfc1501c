"""What history knows of how consumers answer to their prefetch: a model for each of them.

The goal's own model counts most, then the accepted one of the consumer's group (its queue, and its
client's name up to the first "#" or "@"), as Spark has learned it. Where several groups of the
queue are known and none is this consumer's, a gain schedule chooses by what a unit of prefetch is
seen to be worth, while it runs; before anything was seen, and far from all, the most cautious one.
Else there is none, and who steers guesses from the first samples.
"""

from __future__ import annotations

import logging
import math
import re

from tidegate.core.errors import InvalidValue
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.laws.workload_schedule import WorkloadSchedule
from tidegate.telemetry.knowledge import Knowledge, Model

log = logging.getLogger(__name__)

# Learned once in minutes at most.
_RELOAD_S = 30.0
_GROUP_ENDS = re.compile("[#@]")


class LearnedPrefetch:
    """The accepted models, read again now and then."""

    def __init__(self, knowledge: Knowledge | None) -> None:
        self._knowledge = knowledge
        self._read_at = float("-inf")
        self._models: dict[str, PrefetchModel] = {}

    @property
    def has_any(self) -> bool:
        return bool(self._models)

    def refresh(self, now: float) -> None:
        """Read the folder again when it is time; one that cannot be read changes nothing."""
        if self._knowledge is None or now - self._read_at < _RELOAD_S:
            return
        self._read_at = now
        try:
            found = self._knowledge.accepted("prefetch")
        except OSError as failure:
            log.warning("what was learned of prefetch cannot be read: %s", failure)
            return
        models = {subject: _model(subject, model) for subject, model in found.items()}
        self._models = {subject: model for subject, model in models.items() if model is not None}

    def of(self, goal: PrefetchGoal, queue: str, client: str) -> PrefetchModel | None:
        """The model for a consumer, if there is one for it; else see `schedule`."""
        if goal.model is not None:
            return goal.model
        return self._models.get(f"{queue}/{_GROUP_ENDS.split(client, 1)[0]}")

    def schedule(self, goal: PrefetchGoal, queue: str, client: str) -> WorkloadSchedule | None:
        """The models of a queue's workloads, where none is known to be this consumer's."""
        of_queue = {
            name: model for name, model in self._models.items() if name.rpartition("/")[0] == queue
        }
        if not of_queue or self.of(goal, queue, client) is not None:
            return None
        return WorkloadSchedule(of_queue)


def _model(subject: str, learned: Model) -> PrefetchModel | None:
    """None: nothing that could be steered by."""
    known = learned.parameters
    try:
        found = PrefetchModel(
            a=known["a"],
            b=known["b"],
            offset_per_s=known.get("offset_per_s", 0.0),
            sample_s=known.get("interval_s", 1.0),
            low=max(int(known.get("prefetch_low", 1)), 1),
            high=max(int(known.get("prefetch_high", 360)), 1),
            r2_test=learned.quality.get("r2_test", math.nan),
            rmse_test_per_s=learned.quality.get("rmse_test_per_s", math.nan),
            engine="tidegate",
            queue=subject.rpartition("/")[0],
            made_at=learned.to_s,
        )
        found.check()
    except (KeyError, ValueError, InvalidValue) as wrong:
        log.warning("the learned prefetch model of %s is not used: %s", subject, wrong)
        return None
    return found
