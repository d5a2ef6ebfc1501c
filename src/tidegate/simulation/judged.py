"""A run under its agreement: every tick is judged, whatever the policy, as the real loop judges.

So a policy that knows nothing of the agreement can be held beside the one that obeys it, by the
same windows.
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
    """An agreement about any queue: there is only one here."""
    agreement = parse_agreement(text, source)
    if agreement.queue is None:
        raise InvalidValue(f"{source} is about http: what is simulated is a queue")
    return agreement


def obeyed(scaling: Scaling) -> Scaling:
    """The same with what its agreement says; without one as it is."""
    if scaling.agreement is None:
        return scaling
    return obeying(scaling, agreement_in(scaling.agreement))


class Judged:
    """The agreement of a simulated queue, and what it has seen."""

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
        """As the document guesses it."""
        return self._agreement.said.resources.capacity_per_s

    def look(self, tick_s: float) -> None:
        """A tick is over."""
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
        """What the loop is to keep now."""
        self._agreement.reconfigured(lead_s)
        self._agreement.learn_warnings(self._scaling.boot_s)
        return self._agreement.pledge(self._scaling.sla_delta)
