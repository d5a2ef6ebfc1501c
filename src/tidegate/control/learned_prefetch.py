"""Learned prefetch models: how a consumer's rate depends on its prefetch.

The model of the goal counts most. Next comes the accepted model of the consumer's group, which is
its queue and its client's name up to the first "#" or "@". If only other groups of the queue are
known, a gain schedule chooses among their models while it runs. It chooses by the measured effect
of a unit of prefetch. Before a measurement, and far from all models, it uses the most cautious one.
Without any model, the regulator guesses one from the first samples.
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

# Seconds between two reads; models change once in minutes at most.
_RELOAD_S = 30.0
_GROUP_ENDS = re.compile("[#@]")


class LearnedPrefetch:
    """The accepted prefetch models, read again from time to time."""

    def __init__(self, knowledge: Knowledge | None) -> None:
        self._knowledge = knowledge
        self._read_at = float("-inf")
        self._models: dict[str, PrefetchModel] = {}

    @property
    def has_any(self) -> bool:
        return bool(self._models)

    def refresh(self, now: float) -> None:
        """Read the models again if it is time; keep the old ones if the folder cannot be read."""
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
        """Return the model of a consumer; None if there is none, see `schedule`."""
        if goal.model is not None:
            return goal.model
        return self._models.get(f"{queue}/{_GROUP_ENDS.split(client, 1)[0]}")

    def schedule(self, goal: PrefetchGoal, queue: str, client: str) -> WorkloadSchedule | None:
        """Return the models of the queue's other groups as a schedule.

        None if the consumer has a model of its own, or if none is known.
        """
        of_queue = {
            name: model for name, model in self._models.items() if name.rpartition("/")[0] == queue
        }
        if not of_queue or self.of(goal, queue, client) is not None:
            return None
        return WorkloadSchedule(of_queue)


def _model(subject: str, learned: Model) -> PrefetchModel | None:
    """Convert a learned model; return None and log it if it cannot be used for control."""
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
