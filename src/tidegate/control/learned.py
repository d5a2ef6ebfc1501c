"""Learned models for the loops: capacities, boot times, growth of the load.

The first of these counts: the user's setting, the newest accepted model of the knowledge folder,
the agreement's value, a safe default. The decision's text names the default
(docs/decisions/0008-whose-word-counts.md).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from tidegate.core.scaling import Scaling, ScalingPolicy
from tidegate.laws.election import CAPACITY_CLIENTS
from tidegate.telemetry.knowledge import Knowledge, Model

log = logging.getLogger(__name__)

_FLEET = "fleet"
_KINDS = ("capacity", "http_capacity", "provisioning", "warnings")
# Seconds between two reads; models change once in minutes at most.
_RELOAD_S = 30.0


class Learned:
    """The accepted models that loops use, read again from time to time."""

    def __init__(self, knowledge: Knowledge | None) -> None:
        self._knowledge = knowledge
        self._read_at = float("-inf")
        # By kind and subject.
        self._models: dict[str, dict[str, Model]] = {}

    def refresh(self, now: float) -> None:
        """Read the models again if it is time; keep the old ones if the folder cannot be read."""
        if self._knowledge is None or now - self._read_at < _RELOAD_S:
            return
        self._read_at = now
        try:
            self._models = {kind: self._knowledge.accepted(kind) for kind in _KINDS}
        except OSError as failure:
            log.warning("what was learned cannot be read: %s", failure)

    def accepted(self, kind: str) -> Mapping[str, Model]:
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

    def capacity(self, queue: str) -> Model | None:
        """Return the model of a replica's capacity; None if there is none."""
        return self.accepted("capacity").get(queue)

    def warnings(self, agreement: str) -> Model | None:
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
