"""The agreement of a simulated queue: judges every tick as the real loop does, under any policy.

Policies that ignore the agreement and policies that follow it can thus be compared by the same
windows.
"""

from __future__ import annotations

from tidegate.agreement.document import Agreement, parse_agreement
from tidegate.agreement.evaluation import Counts
from tidegate.agreement.scaling_terms import obeying
from tidegate.agreement.windows import Sample
from tidegate.control.queue_agreement import QueueAgreement
from tidegate.core.errors import InvalidValue
from tidegate.core.scaling import Scaling
from tidegate.laws.wait_sizing import Pledge
from tidegate.simulation.plant import Plant

QUEUE = "orders"


def agreement_in(text: str, source: str = "agreement") -> Agreement:
    """Parse an agreement about any queue; the simulation has only one.

    Raises `InvalidValue` if the agreement is about HTTP.
    """
    agreement = parse_agreement(text, source)
    if agreement.queue is None:
        raise InvalidValue(f"{source} is about http: what is simulated is a queue")
    return agreement


def obeyed(scaling: Scaling) -> Scaling:
    """Return the scaling settings with the terms of their agreement, or unchanged without one."""
    if scaling.agreement is None:
        return scaling
    return obeying(scaling, agreement_in(scaling.agreement))


class Judged:
    """The agreement of a simulated queue, and its evaluation so far."""

    def __init__(self, scaling: Scaling, plant: Plant) -> None:
        assert scaling.agreement is not None
        self._agreement = QueueAgreement(agreement_in(scaling.agreement), QUEUE)
        self._scaling = scaling
        self._plant = plant
        plant.waits = []
        self._arrived = self._consumed = 0
        self.counts = Counts()

    @property
    def capacity_per_s(self) -> float | None:
        """The capacity of a replica that the agreement states, or `None`."""
        return self._agreement.said.resources.capacity_per_s

    def look(self, tick_s: float) -> None:
        """Evaluate the tick that has just ended."""
        plant = self._plant
        waits = plant.waits or []
        sample = Sample(
            at_s=plant.now,
            interval_s=tick_s,
            accepted=float(plant.arrived - self._arrived),
            served=float(plant.consumed - self._consumed),
            waiting=float(plant.waiting),
            oldest_age_s=plant.oldest_age_s,
            times={"wait": tuple(waits)},
        )
        waits.clear()
        self._arrived, self._consumed = plant.arrived, plant.consumed
        for entry in self._agreement.take(sample):
            self.counts += Counts.of([entry.window.verdict])

    def pledge(self, lead_s: float | None) -> Pledge:
        """Return the wait target for the next decision of the loop."""
        self._agreement.reconfigured(lead_s)
        self._agreement.learn_warnings(self._scaling.boot_s)
        return self._agreement.pledge(self._scaling.sla_delta)
