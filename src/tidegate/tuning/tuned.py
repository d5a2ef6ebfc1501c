"""What a tuning comes to: a model with its quality, and the controller that was designed for it."""

from __future__ import annotations

import math

import msgspec

from tidegate.core.prefetch import ControllerKind, PrefetchModel
from tidegate.laws.closed_loop import ClosedLoop


class TunedController(msgspec.Struct, frozen=True, kw_only=True):
    """Gains, per sample of the model, and what they will do according to the model."""

    kind: ControllerKind
    proportional: float
    integral: float
    derivative: float
    setpoint_weight: float
    # Real and imaginary part, slowest first.
    poles: list[tuple[float, float]]
    damping: float
    # Of the simulated step to the target.
    settle_s: float
    overshoot: float
    # Of the target, what is never reached: 0 with an integral.
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
    """The model file: whoever loads it as a PrefetchModel leaves the rest alone."""

    target_per_s: float
    controller: TunedController
    # Standard errors.
    a_error: float = math.nan
    b_error: float = math.nan
    # Whose consumer was measured.
    measured_on: str = ""
    notes: tuple[str, ...] = ()

    def plain(self) -> PrefetchModel:
        """Without what only people want to know, as a goal carries it."""
        fields = PrefetchModel.__struct_fields__
        return PrefetchModel(**{name: getattr(self, name) for name in fields})
