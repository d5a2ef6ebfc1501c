"""Prefetch as a controlled variable: goals, measurements and models.

A goal is in terms that users know: a rate or "keep up", a settling time, an overshoot. A model
describes how a consumer's arrival rate follows its prefetch: y(k+1) = a·y(k) + b·u(k) + offset.
`tidegate tune prefetch` writes a model to a file, and Spark learns models from history. The
controller's gains follow from goal and model.
"""

from __future__ import annotations

import enum
import math
from pathlib import Path
from typing import Any, Self

import msgspec

from tidegate.core.complaint import meant
from tidegate.core.errors import InvalidValue

# RabbitMQ's protocol has 16 bits for it.
PREFETCH_MAX = 65_535
OVERSHOOT_MAX = 0.5
# The least R² on held-out data of a model that may be used for control.
R2_ACCEPTED = 0.8
# Bounds on the gain of one unit of prefetch, in msg/s. A round trip takes at least a microsecond
# and at most some days.
WORTH_PER_S_MAX = 1e6
WORTH_PER_S_MIN = 1e-6
# A goal whose rate is this many times below the gain of the model does not fit the model.
WORTH_TIMES_MAX = 10.0
SAMPLE_S_MAX = 86_400.0
# The version of model files; it changes when a field changes its meaning.
FILE_VERSION = 1
# Fields that `tidegate tune prefetch` adds to a model file for people.
FOR_PEOPLE = frozenset({"target_per_s", "controller", "a_error", "b_error", "measured_on", "notes"})


class ControllerKind(enum.StrEnum):
    """The control law."""

    P = "P"
    PI = "PI"
    PID = "PID"


class PrefetchModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a consumer's arrival rate follows its prefetch, and how well that is known."""

    a: float
    b: float
    offset_per_s: float = 0.0
    # The sampling interval of the data. Gains are valid for this interval only.
    sample_s: float = 1.0
    # The range of prefetch in which the model is valid.
    low: int = 1
    high: int = 360
    # The highest rate that the handler reached; NaN means that it was never saturated.
    ceiling_per_s: float = math.nan
    # Measured on data that was not used for fitting.
    r2_test: float = math.nan
    rmse_test_per_s: float = math.nan
    r2_train: float = math.nan
    rmse_train_per_s: float = math.nan
    n_train: int = 0
    n_test: int = 0
    # Its origin: "rabbitmq" or "tidegate", the queue, and the time in seconds since 1970.
    engine: str = ""
    queue: str = ""
    made_at: float = 0.0

    def __post_init__(self) -> None:
        # JSON has no NaN. `omit_defaults` leaves out the default object only, so replace other NaNs
        # by it.
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, float) and math.isnan(value):
                msgspec.structs.force_setattr(self, name, math.nan)

    @property
    def worth_per_s(self) -> float:
        """The gain at rest: how many msg/s one more unit of prefetch yields."""
        return self.b / (1.0 - self.a)

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Read a model file of `tidegate tune prefetch --out`.

        Raise `InvalidValue` if it is no model file, or if the model is not usable for control.
        """
        try:
            document = msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Any])
            _check_document(file, document, {*cls.__struct_fields__, *FOR_PEOPLE})
            found = msgspec.convert(document, cls)
        except OSError as failure:
            raise InvalidValue(
                f"the model file {file} cannot be read: {failure.strerror}"
            ) from None
        except msgspec.DecodeError as failure:
            raise InvalidValue(
                f"{file} is no model file ({failure}): `tidegate tune prefetch` writes one"
            ) from None
        try:
            found.check()
            if found.r2_test < R2_ACCEPTED:
                raise InvalidValue(
                    f"it explains {found.r2_test:.0%} of held-out data, and {R2_ACCEPTED:.0%} is "
                    "needed: identify it again"
                )
        except InvalidValue as wrong:
            raise InvalidValue(f"the model file {file}: {wrong}") from None
        return found

    def save(self, file: str | Path) -> None:
        """Write a model file atomically, since a loop may be reading it.

        Raise `InvalidValue` if it cannot be written.
        """
        beside = Path(f"{file}.new")
        document = {"version": FILE_VERSION, **msgspec.json.decode(msgspec.json.encode(self))}
        try:
            beside.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
            beside.replace(file)
        except OSError as failure:
            raise InvalidValue(
                f"the model file {file} cannot be written: {failure.strerror}"
            ) from None

    def check(self) -> None:
        """Raise `InvalidValue` unless the model describes a consumer that can be controlled."""
        if not (abs(self.a) < 1.0 and 0.0 < self.b < math.inf and self.sample_s > 0.0):
            raise InvalidValue(
                f"a = {self.a:g}, b = {self.b:g} per {self.sample_s:g} s is no model of a consumer "
                "that can be steered by its prefetch: |a| < 1, b > 0 and a sample above 0 s are "
                "needed; identify it again"
            )
        if not WORTH_PER_S_MIN <= self.worth_per_s <= WORTH_PER_S_MAX:
            raise InvalidValue(
                f"one unit of prefetch would be worth {self.worth_per_s:.3g} msg/s, and no message "
                f"goes round in {1.0 / self.worth_per_s:.2g} s: identify it again"
            )
        if not (1 <= self.low <= self.high <= PREFETCH_MAX and self.sample_s <= SAMPLE_S_MAX):
            raise InvalidValue(
                f"a model from prefetch {self.low} to {self.high} by samples of {self.sample_s:g} "
                f"s: 1 to {PREFETCH_MAX}, the lower one first, and a day at most; identify it again"
            )

    def doubts(self, queue: str, engine: str) -> str:
        """Return why the model may not fit consumers of this queue; empty if there is no reason."""
        if self.queue and self.queue != queue:
            return f"the model was measured on queue {self.queue}, and is used for {queue}"
        if self.engine and self.engine != engine:
            return f"the model was measured on {self.engine}, and is used on {engine}"
        return ""


class PrefetchGoal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The goal to which the prefetch of a queue's consumers is controlled."""

    # Messages per second for each consumer; `None` means as many as its handler can process.
    rate_per_s: float | None = None
    settle_s: float = 30.0
    overshoot: float = 0.05
    controller: ControllerKind = ControllerKind.PI
    sample_s: float = 1.0
    low: int = 1
    high: int = 360
    # The prefetch to use when measurements stop.
    fallback: int = 10
    # "Keep up" only: how many messages may wait in the consumer. `None` means one for every two
    # that are on their way or being handled, since messages arrive in batches.
    held: float | None = None
    # Whether the model is adapted while the loop runs.
    adaptive: bool = True
    # An override of the prefetch; `None` means automatic.
    manual: int | None = None
    # Whether there was no control before the override. If so, removing the override ends control.
    only_manual: bool = False
    # `None` means the learned model, or else a cautious guess from the first samples.
    model: PrefetchModel | None = None

    def check(self) -> None:
        """Raise `InvalidValue`, with advice, if the goal cannot be pursued."""
        if self.rate_per_s is not None and not 0.0 < self.rate_per_s < math.inf:
            raise InvalidValue(
                f"a target of {self.rate_per_s:g} messages a second cannot be steered to: say a "
                "number above 0, or none at all to keep up with the handler; to stop a consumer, "
                "stop it"
            )
        if not 1 <= self.low <= self.high <= PREFETCH_MAX:
            raise InvalidValue(
                f"a prefetch from {self.low} to {self.high}: say 1 to {PREFETCH_MAX} (0 means "
                "unlimited to RabbitMQ), the lower one first"
            )
        if not (0.0 < self.sample_s < math.inf and self.sample_s <= self.settle_s < math.inf):
            raise InvalidValue(
                f"settling within {self.settle_s:g} s by samples of {self.sample_s:g} s: both are "
                "above 0, and the time to settle is many samples, 16 or more at best"
            )
        if not 0.0 <= self.overshoot <= OVERSHOOT_MAX:
            raise InvalidValue(
                f"an overshoot of {100 * self.overshoot:g} %: say 0 to {100 * OVERSHOOT_MAX:g} %"
            )
        if self.held is not None and not 0.0 <= self.held < math.inf:
            raise InvalidValue(f"{self.held:g} messages that may wait: say 0 or more")
        for name, value in (("fallback", self.fallback), ("manual", self.manual)):
            if value is not None and not 1 <= value <= PREFETCH_MAX:
                raise InvalidValue(f"{name} is a prefetch, 1 to {PREFETCH_MAX}, not {value}")
        if self.model is not None:
            self.model.check()
            self._check_worth(self.model.worth_per_s)

    def _check_worth(self, worth_per_s: float) -> None:
        if self.rate_per_s is not None and worth_per_s > WORTH_TIMES_MAX * self.rate_per_s:
            raise InvalidValue(
                f"by the model a unit of prefetch is worth {worth_per_s:.3g} msg/s, so none gives "
                f"as little as {self.rate_per_s:g}: a wrong model, or a target for more than one "
                "consumer; `tidegate tune prefetch` with this target says which"
            )


def _check_document(file: str | Path, document: dict[str, Any], known: set[str]) -> None:
    """Raise `InvalidValue` unless the version and all fields are known."""
    version = document.pop("version", FILE_VERSION)
    if version != FILE_VERSION:
        raise InvalidValue(
            f"{file} is a model file of version {version}, and this Tidegate reads {FILE_VERSION}: "
            "identify it again, or use the Tidegate that wrote it"
        )
    if unknown := sorted(document.keys() - known):
        raise InvalidValue(
            f"{file} is no model file: there is no field {unknown[0]!r}"
            f"{meant(unknown[0], sorted(known))}. `tidegate tune prefetch` writes one"
        )


class ConsumerSample(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer over one sampling interval."""

    # The end of the interval, by the loop's own clock.
    at: float
    interval_s: float
    # y: deliveries per second.
    arrived_per_s: float
    # Messages handled per second, and the busy part of the interval; `None` means not known.
    processed_per_s: float | None = None
    busy: float | None = None
    # Messages that wait in the consumer; `None` means not known.
    held: float | None = None
    # The mean prefetch during the interval.
    prefetch: float = math.nan
    # The queue had no messages for it, so the rate does not show the effect of the prefetch.
    starved: bool = False
