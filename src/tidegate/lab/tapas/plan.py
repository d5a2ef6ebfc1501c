"""The sizes of the TAPAS experiments: those of the report if two cores allow it, and quick ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidegate.core.hosting import Engine
from tidegate.lab.tapas.bookshop import ShopSetting


class PairCase(msgspec.Struct, frozen=True):
    """A comparison in pairs of plain HAProxy and Tidegate, for several numbers of instances."""

    clients: int
    instances: Sequence[int]
    # The service time of an operation; 0 means only its processor time.
    service_s: float
    # True if the bars of the issue apply to this case.
    is_barred: bool = True

    @property
    def title(self) -> str:
        pace = f"{self.service_s * 1000:g} ms each" if self.service_s else "never idle"
        fewest, most = min(self.instances), max(self.instances)
        instances = str(most) if fewest == most else f"{fewest} to {most}"
        return f"{self.clients} clients, {instances} instances, {pace}"


# The report's operations took hundreds of milliseconds. With 20 ms, the share of a door is larger.
# The last case has no service time and shows the highest relative cost of a door.
PAIR_CASES = (
    PairCase(15, (1, 2, 3, 4), 0.02),
    PairCase(50, (1, 2, 3, 4), 0.02),
    PairCase(15, (3,), 0.0, is_barred=False),
)


class PairLength(msgspec.Struct, frozen=True):
    """The number of pairs of a case, for all numbers of instances together, and their length."""

    pairs: int = 12
    seconds: float = 5.0
    # Seconds before the measurement that do not count.
    warm_s: float = 1.0


class OverheadPlan(msgspec.Struct, frozen=True):
    """The sizes of the experiment `overhead`, which measures doors at full speed."""

    shop: ShopSetting = ShopSetting()
    clients: Sequence[int] = (15, 50)
    instances: Sequence[int] = (1, 2, 3, 4)
    # Seconds of each run that count, and seconds before them that do not.
    seconds: float = 4.0
    warm_s: float = 1.0
    paired: Sequence[PairCase] = PAIR_CASES
    length: PairLength = PairLength()


class WholePlan(msgspec.Struct, frozen=True):
    """The sizes of the experiment `whole`: all of `tidegate host` beside plain HAProxy."""

    shop: ShopSetting = ShopSetting()
    paired: Sequence[PairCase] = tuple(case for case in PAIR_CASES if case.is_barred)
    length: PairLength = PairLength()


class Case(msgspec.Struct, frozen=True):
    """A number of clients and of first instances, with the report's figure and result."""

    start: int
    clients: int
    figure: str
    # The report's result: response time of the static server over that of TAPAS, minus 1.
    paper_slower: float | None = None
    spares: int = 0

    @property
    def name(self) -> str:
        spares = f", {self.spares} spares" if self.spares else ""
        return f"{self.clients} clients from {self.start}{spares}"


CASES = (
    Case(1, 10, "figure 21", 0.0),
    Case(1, 20, "figure 21", 1.24),
    Case(1, 30, "figure 21", 3.62),
    Case(2, 10, "figure 22", 0.0),
    Case(2, 20, "figure 22", 0.0),
    # The report's response times are 39, 48 and 50 % lower than those of the static server.
    Case(2, 30, "figure 22", 0.64),
    Case(2, 40, "figure 22", 0.92),
    Case(2, 50, "figure 22", 1.0),
    Case(1, 50, "figures 17 and 18", 0.18, spares=2),
)


class KeepingPlan(msgspec.Struct, frozen=True):
    """The sizes of the experiment `agreement`, whose clients arrive one by one."""

    # One instance answers 20 clients in 1.35 s and 10 clients in 0.68 s, as in the report.
    shop: ShopSetting = ShopSetting(concurrency=4, service_s=0.27)
    cases: Sequence[Case] = CASES
    replicas_max: int = 4
    # The time between two arrivals, and the time for which all clients stay. In it the last client
    # completes about ten sessions of ten operations.
    ramp_s: float = 1.5
    hold_s: float = 60.0
    # The door of our instances.
    engine: Engine = Engine.GATEWAY


POLICIES = (
    *("random", "round-robin", "first-available", "first-available-shared", "workload"),
    *("workload-drawn", "least-outstanding", "better-of-two"),
)


class SkewPlan(msgspec.Struct, frozen=True):
    """The sizes of the experiment `skew`, in which one of four instances has a fault."""

    # With 24 clients each instance has six, a little more than its concurrency.
    shop: ShopSetting = ShopSetting(concurrency=4, service_s=0.1)
    instances: int = 4
    clients: int = 24
    policies: Sequence[str] = POLICIES
    # Seconds before and after the fault; multiples of a window.
    calm_s: float = 10.0
    after_s: float = 20.0
    answer_timeout_s: float = 5.0
    client_timeout_s: float = 10.0


class Plan(msgspec.Struct, frozen=True):
    """The sizes of all experiments."""

    overhead: OverheadPlan = OverheadPlan()
    whole: WholePlan = WholePlan()
    keeping: KeepingPlan = KeepingPlan()
    skew: SkewPlan = SkewPlan()

    @classmethod
    def quick(cls) -> Plan:
        paired = (PairCase(15, (1, 2), 0.02),)
        return cls(
            overhead=OverheadPlan(
                clients=(15,),
                instances=(2,),
                seconds=0.6,
                warm_s=0.2,
                paired=paired,
                length=PairLength(pairs=4, seconds=0.6, warm_s=0.2),
            ),
            whole=WholePlan(paired=paired, length=PairLength(pairs=2, seconds=0.6, warm_s=0.2)),
            keeping=KeepingPlan(cases=(Case(1, 20, "figure 21", 1.24),), ramp_s=1.0, hold_s=5.0),
            skew=SkewPlan(policies=("workload", "better-of-two"), calm_s=5.0, after_s=10.0),
        )

    def of_pairs(self, pairs: int) -> Plan:
        """Return this plan with another number of pairs for each case."""
        replace = msgspec.structs.replace
        overhead, whole = (
            replace(part, length=replace(part.length, pairs=pairs))
            for part in (self.overhead, self.whole)
        )
        return replace(self, overhead=overhead, whole=whole)
