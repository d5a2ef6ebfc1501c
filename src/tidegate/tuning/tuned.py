"""The result of a tuning: a model with its quality, and the controller designed for it."""

from __future__ import annotations

import math

import msgspec

from tidegate.core.prefetch import ControllerKind, PrefetchModel
from tidegate.laws.closed_loop import ClosedLoop


class TunedController(msgspec.Struct, frozen=True, kw_only=True):
    """Gains per sample of the model, and the behaviour that the model predicts for them."""

    kind: ControllerKind
    proportional: float
    integral: float
    derivative: float
    setpoint_weight: float
    # Real and imaginary part, slowest first.
    poles: list[tuple[float, float]]
    damping: float
    # Settling time and overshoot of the simulated step to the target.
    settle_s: float
    overshoot: float
    # Remaining error as a fraction of the target; 0 with an integral.
    offset: float

    @staticmethod
    def of(loop: ClosedLoop, sample_s: float) -> TunedController:
        gains = loop.gains
        return TunedController(
            kind=ControllerKind(gains.kind.value),
            proportional=gains.proportional,
            integral=gains.integral,
            derivative=gains.derivative,
            setpoint_weight=gains.setpoint_weight,
            poles=[(pole.real, pole.imag) for pole in loop.poles],
            damping=loop.damping,
            settle_s=loop.predicted.settling_samples * sample_s,
            overshoot=loop.predicted.overshoot,
            offset=loop.offset,
        )


class TunedModel(PrefetchModel, frozen=True, kw_only=True, omit_defaults=True):
    """The contents of a model file.

    Code that loads it as a `PrefetchModel` ignores the further fields.
    """

    target_per_s: float
    controller: TunedController
    # Standard errors.
    a_error: float = math.nan
    b_error: float = math.nan
    # Description of the consumer that was measured.
    measured_on: str = ""
    notes: tuple[str, ...] = ()

    def plain(self) -> PrefetchModel:
        """Return the model without the informational fields, in the form that a goal contains."""
        fields = PrefetchModel.__struct_fields__
        return PrefetchModel(**{name: getattr(self, name) for name in fields})
