"""How much is measured: the report's numbers where two cores allow them, and a quick look."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidegate.core.hosting import Engine
from tidegate.lab.tapas.bookshop import ShopSetting


class PairCase(msgspec.Struct, frozen=True):
    """Plain HAProxy and ours, in turn, before each of these numbers of instances."""

    clients: int
    instances: Sequence[int]
    # What an operation takes, whatever else the instance does.
    service_s: float
    # Whether the bars of the issue are about it.
    is_barred: bool = True

    @property
    def title(self) -> str:
        pace = f"{self.service_s * 1000:g} ms each" if self.service_s else "never idle"
        fewest, most = min(self.instances), max(self.instances)
        instances = str(most) if fewest == most else f"{fewest} to {most}"
        return f"{self.clients} clients, {instances} instances, {pace}"


# The report's operations took hundreds of milliseconds; of 20, a door's share is larger. Beside
# them what a door costs at the most: nobody waits for anything but the processor.
PAIR_CASES = (
    PairCase(15, (1, 2, 3, 4), 0.02),
    PairCase(50, (1, 2, 3, 4), 0.02),
    PairCase(15, (3,), 0.0, is_barred=False),
)


class PairLength(msgspec.Struct, frozen=True):
    """How many pairs, over all numbers of instances of a case, and how long each side of one."""

    pairs: int = 12
    seconds: float = 5.0
    # What comes before it and does not count.
    warm_s: float = 1.0


class OverheadPlan(msgspec.Struct, frozen=True):
    """Ways to the shop, as fast as the machine goes."""

    shop: ShopSetting = ShopSetting()
    clients: Sequence[int] = (15, 50)
    instances: Sequence[int] = (1, 2, 3, 4)
    # What counts of each run, and what comes before it.
    seconds: float = 4.0
    warm_s: float = 1.0
    paired: Sequence[PairCase] = PAIR_CASES
    length: PairLength = PairLength()


class WholePlan(msgspec.Struct, frozen=True):
    """All of `tidegate host` beside plain HAProxy."""

    shop: ShopSetting = ShopSetting()
    paired: Sequence[PairCase] = tuple(case for case in PAIR_CASES if case.is_barred)
    length: PairLength = PairLength()


class Case(msgspec.Struct, frozen=True):
    """So many clients, from so many instances; the report's figure, and what it found there."""

    start: int
    clients: int
    figure: str
    # Of the static server: its response time over TAPAS' own, less 1.
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
    # 39, 48 and 50 % lower than the static one's.
    Case(2, 30, "figure 22", 0.64),
    Case(2, 40, "figure 22", 0.92),
    Case(2, 50, "figure 22", 1.0),
    Case(1, 50, "figures 17 and 18", 0.18, spares=2),
)


class KeepingPlan(msgspec.Struct, frozen=True):
    """The agreement under a load that comes client by client."""

    # One alone answers 20 clients in 1.35 s, and 10 in 0.68 s: the report's own figures.
    shop: ShopSetting = ShopSetting(concurrency=4, service_s=0.27)
    cases: Sequence[Case] = CASES
    replicas_max: int = 4
    # From one client's coming to the next one's, and how long all of them stay: so long that the
    # last one comes to some ten sessions of ten operations.
    ramp_s: float = 1.5
    hold_s: float = 60.0
    # What stands before our instances.
    engine: Engine = Engine.GATEWAY


POLICIES = (
    *("random", "round-robin", "first-available", "first-available-shared", "workload"),
    *("workload-drawn", "least-outstanding", "better-of-two"),
)


class SkewPlan(msgspec.Struct, frozen=True):
    """Four instances, one of which fails in one way or another."""

    # Six of 24 clients at each: a little more than it does at a time.
    shop: ShopSetting = ShopSetting(concurrency=4, service_s=0.1)
    instances: int = 4
    clients: int = 24
    policies: Sequence[str] = POLICIES
    # Until the fault, and from there on; whole windows.
    calm_s: float = 10.0
    after_s: float = 20.0
    answer_timeout_s: float = 5.0
    client_timeout_s: float = 10.0


class Plan(msgspec.Struct, frozen=True):
    """All parts."""

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
        """The same with so many pairs of each case."""
        replace = msgspec.structs.replace
        overhead, whole = (
            replace(part, length=replace(part.length, pairs=pairs))
            for part in (self.overhead, self.whole)
        )
        return replace(self, overhead=overhead, whole=whole)
