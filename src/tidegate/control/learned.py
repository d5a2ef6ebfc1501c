"""Learned models for the loops: capacities, boot times, growth of the load.

The first of these counts: the user's setting, the newest accepted model of the knowledge folder,
the agreement's value, a safe default. The decision's text names the default
(docs/decisions/0008-whose-word-counts.md).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping

import msgspec

from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import with_learned_warnings
from tidegate.core.errors import InvalidValue
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.core.topology import Scaling, ScalingPolicy
from tidegate.laws.prefetch.controller import WorkloadSchedule
from tidegate.laws.scaling.clients import CAPACITY_CLIENTS
from tidegate.telemetry.models import ModelRegistry, StoredModel

log = logging.getLogger(__name__)

_FLEET = "fleet"
_KINDS = ("capacity", "http_capacity", "provisioning", "warnings")
# Seconds between two reads; models change once in minutes at most.
_RELOAD_S = 30.0


class AcceptedModels:
    """The accepted models that loops use, read again from time to time."""

    def __init__(self, knowledge: ModelRegistry | None) -> None:
        self._knowledge = knowledge
        self._read_at = float("-inf")
        # By kind and subject.
        self._models: dict[str, dict[str, StoredModel]] = {}

    def refresh(self, now: float) -> None:
        """Read the models again if it is time; keep the old ones if the folder cannot be read."""
        if self._knowledge is None or now - self._read_at < _RELOAD_S:
            return
        self._read_at = now
        try:
            self._models = {kind: self._knowledge.accepted(kind) for kind in _KINDS}
        except OSError as failure:
            log.warning("what was learned cannot be read: %s", failure)

    def accepted(self, kind: str) -> Mapping[str, StoredModel]:
        """Return the accepted models of a kind, by subject."""
        return self._models.get(kind, {})

    def complete(self, queue: str, scaling: Scaling) -> Scaling:
        """Return the scaling settings with learned values in place of missing ones."""
        capacity, fleet = self.capacity(queue), self._parameters
        changes: dict[str, float] = {}
        if scaling.capacity_clients is None:
            clients = None if capacity is None else capacity.parameters.get("clients")
            changes["capacity_clients"] = clients or CAPACITY_CLIENTS
        if scaling.boot_s is None and "boot_s" in fleet:
            changes["boot_s"] = fleet["boot_s"]
        if scaling.sla_delta is None and "sla_delta" in fleet:
            changes["sla_delta"] = fleet["sla_delta"]
        return msgspec.structs.replace(scaling, **changes) if changes else scaling

    def capacity(self, queue: str) -> StoredModel | None:
        """Return the model of a replica's capacity; None if there is none."""
        return self.accepted("capacity").get(queue)

    def warnings(self, agreement: str) -> StoredModel | None:
        """Return how fast an agreement's promises got worse, and how long remedies took."""
        return self.accepted("warnings").get(agreement)

    @property
    def machine_capacity_per_s(self) -> float | None:
        """Messages per second that a machine with all slots in use was measured to do."""
        return self._parameters.get("machine_capacity_per_s")

    @property
    def _parameters(self) -> dict[str, float]:
        fleet = self.accepted("provisioning").get(_FLEET)
        return {} if fleet is None else fleet.parameters

    def says(self, queue: str, scaling: Scaling, *, has_fleet: bool) -> str:
        """Return a sentence that names the defaults in use; empty if there are none."""
        missing = []
        is_by_clients = scaling.policy is ScalingPolicy.CLIENTS
        if is_by_clients and scaling.capacity_clients is None and self.capacity(queue) is None:
            missing.append(f"a capacity of {CAPACITY_CLIENTS:g} clients per replica")
        is_said = scaling.boot_s is not None and scaling.sla_delta is not None
        if has_fleet and scaling.warm is None and not self._parameters and not is_said:
            missing.append("no warm machine")
        return f"Nothing was learned yet: {', '.join(missing)} by default." if missing else ""


# Learned prefetch models: how a consumer's rate depends on its prefetch.
#
# The model of the goal counts most. Next comes the accepted model of the consumer's group, which is
# its queue and its client's name up to the first "#" or "@". If only other groups of the queue are
# known, a gain schedule chooses among their models while it runs. It chooses by the measured effect
# of a unit of prefetch. Before a measurement, and far from all models, it uses the most cautious
# one. Without any model, the regulator guesses one from the first samples.


# Seconds between two reads; models change once in minutes at most.
_PREFETCH_RELOAD_S = 30.0
_GROUP_ENDS = re.compile("[#@]")


class PrefetchModels:
    """The accepted prefetch models, read again from time to time."""

    def __init__(self, knowledge: ModelRegistry | None) -> None:
        self._knowledge = knowledge
        self._read_at = float("-inf")
        self._models: dict[str, PrefetchModel] = {}

    @property
    def has_any(self) -> bool:
        return bool(self._models)

    def refresh(self, now: float) -> None:
        """Read the models again if it is time; keep the old ones if the folder cannot be read."""
        if self._knowledge is None or now - self._read_at < _PREFETCH_RELOAD_S:
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


def _model(subject: str, learned: StoredModel) -> PrefetchModel | None:
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


# An agreement with its learned warnings (`tidegate learn`, job `warnings`).
#
# The model says how fast each promise got worse and how long remedies took. The position of the
# warning is computed from it for the agreement as it is now (agreements.evaluation), because
# the agreement may have changed since. Without a model the default margin stays.


_SLOPE = "slope_"


def with_learned(agreement: Agreement, model: StoredModel | None) -> tuple[Agreement, list[str]]:
    """Return the agreement with its learned warnings moved, and sentences that say why."""
    if not any(metric.learned for metric in agreement.metrics):
        return agreement, []
    helped_s = None if model is None else model.parameters.get("reconfiguration_s")
    if model is None or helped_s is None:
        return agreement, ["Nothing was learned yet: warnings lie by the default margin."]
    changed, lessons = with_learned_warnings(agreement, learned_slopes(model), helped_s)
    return changed, [f"{lesson.metric}: {lesson.because}." for lesson in lessons]


def learned_slopes(model: StoredModel) -> dict[str, float]:
    """Return how fast each metric got worse, by name of the metric."""
    return {
        name.removeprefix(_SLOPE): slope
        for name, slope in model.parameters.items()
        if name.startswith(_SLOPE)
    }
