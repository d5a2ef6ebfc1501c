"""The instances of a service while a decision is made: as they are, and as they will be.

Each action is recorded and applied to the copy here at once, so that the next step of the same
decision sees its effect.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidegate.core.hosting import Instance, InstanceState, Service
from tidegate.core.steering import (
    AddInstance,
    AnyAction,
    DrainInstance,
    MakeSpare,
    Promote,
    RemoveInstance,
)

_COMING = (InstanceState.ORDERED, InstanceState.STARTING)


class Crew:
    """The instances and actions of one decision."""

    def __init__(self, service: Service, instances: Sequence[Instance]) -> None:
        self.service = service
        self.instances = {one.instance_id: one for one in instances}
        # Instances that no door sends requests to.
        self.ejected: set[int] = set()
        # Ordered in this decision; they have no id yet.
        self._ordered = 0
        self._ordered_spares = 0
        self.actions: list[AnyAction] = []
        self.reasons: list[str] = []
        self.rule = ""
        # Problems of the service, as texts for people.
        self.trouble: list[str] = []

    @property
    def wanted_before(self) -> int:
        """The wanted number as it follows from the running instances, if none was stored.

        During a rollout it may be one too high. That is safer than one too low, and the surplus
        instance is removed when the load is low.
        """
        return sum(
            not one.is_spare and one.state is not InstanceState.DRAINING
            for one in self.instances.values()
        )

    @property
    def alive(self) -> list[Instance]:
        """Instances that serve or will serve, and spares; the oldest first."""
        gone = (InstanceState.DRAINING, InstanceState.FAILED)
        return [one for one in self.instances.values() if one.state not in gone]

    @property
    def serving(self) -> list[Instance]:
        """Instances that are to serve: ready, or coming."""
        return [one for one in self.alive if not one.is_spare]

    @property
    def counted_ids(self) -> list[int]:
        """Ids of instances that serve or will serve, without ejected ones."""
        return [one.instance_id for one in self.serving if one.instance_id not in self.ejected]

    @property
    def serving_count(self) -> int:
        """The number of `serving` instances, with those ordered in this decision."""
        return len(self.serving) + self._ordered

    @property
    def spares_count(self) -> int:
        """Spares of the deployed version, with those ordered in this decision."""
        return self._ordered_spares + sum(
            one.is_spare and self.is_current(one) for one in self.alive
        )

    @property
    def ready(self) -> list[Instance]:
        """Instances that answer and get requests."""
        return [
            one
            for one in self.serving
            if one.state is InstanceState.READY and one.instance_id not in self.ejected
        ]

    @property
    def coming(self) -> list[Instance]:
        """Instances that are ordered or starting, and are to serve."""
        return [one for one in self.serving if one.state in _COMING]

    @property
    def ready_spares(self) -> list[Instance]:
        """Spares that are ready, the newest version first."""
        spares = [one for one in self.alive if one.is_spare and one.state is InstanceState.READY]
        return sorted(spares, key=lambda one: (-one.version, one.instance_id))

    @property
    def is_rolling(self) -> bool:
        """Whether instances of another version are still alive."""
        return any(not self.is_current(one) for one in self.alive)

    def is_current(self, instance: Instance) -> bool:
        return instance.version == self.service.version

    def of_state(self, *states: InstanceState) -> list[Instance]:
        return [one for one in self.instances.values() if one.state in states]

    # Actions of the decision

    def because(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def do(self, action: AnyAction) -> None:
        self.actions.append(action)

    def add(self, count: int = 1, *, is_spare: bool = False) -> None:
        self.actions.append(AddInstance(count, is_spare))
        if is_spare:
            self._ordered_spares += count
        else:
            self._ordered += count

    def promote(self, instance: Instance) -> None:
        self.actions.append(Promote(instance.instance_id))
        self._change(instance, weight=1.0)

    def make_spare(self, instance: Instance) -> None:
        self.actions.append(MakeSpare(instance.instance_id))
        self._change(instance, weight=0.0)

    def drain(self, instance: Instance) -> None:
        self.actions.append(DrainInstance(instance.instance_id))
        self._change(instance, state=InstanceState.DRAINING)

    def remove(self, instance: Instance) -> None:
        self.actions.append(RemoveInstance(instance.instance_id))
        del self.instances[instance.instance_id]

    def _change(self, instance: Instance, **changes: object) -> None:
        self.instances[instance.instance_id] = msgspec.structs.replace(instance, **changes)
