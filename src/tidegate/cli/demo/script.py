"""Who does what in the demo, and what happens when.

Three queues that behave differently: `orders` has workers of different speed, `emails` is steady
and slow, and into `clicks` comes a burst in the middle, which its worker can only take once its
prefetch is raised. All times are shares of the whole, so that any length shows the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.lab.bench.load import Duty, Phase

QUEUES = ("orders", "emails", "clicks")
BURST_FROM = 0.40
BURST_UNTIL = 0.55
BURST_PER_S = None  # as fast as it goes
CLICKS_PREFETCH = 5
CLICKS_PREFETCH_RAISED = 2000


@dataclass(frozen=True)
class Turn:
    """Something that happens at a moment."""

    at_share: float
    told: str
    # A queue, and the prefetch that its consumers are given.
    prefetch: tuple[str, int] | None = None


TURNS = (
    Turn(0.0, "steady producers; workers of different speed share the orders"),
    Turn(
        BURST_FROM,
        f"a burst of clicks begins: more than its worker takes at prefetch {CLICKS_PREFETCH}",
    ),
    Turn(
        (BURST_FROM + BURST_UNTIL) / 2,
        f"prefetch of clicks raised from {CLICKS_PREFETCH} to {CLICKS_PREFETCH_RAISED:,}, live",
        ("clicks", CLICKS_PREFETCH_RAISED),
    ),
    Turn(BURST_UNTIL, "the burst is over"),
    Turn(1.0, "producers are done; workers empty the queues"),
)


def duties(url: str, seconds: float) -> list[Duty]:
    """Each process of the demo, workers first."""
    workers = [
        _worker(url, "orders", "swift", prefetch=50, service_s=0.0),
        _worker(url, "orders", "steady", prefetch=20, service_s=0.002),
        _worker(url, "orders", "slow", prefetch=5, service_s=0.010),
        _worker(url, "emails", "steady", prefetch=5, service_s=0.006),
        _worker(url, "emails", "slow", prefetch=5, service_s=0.012),
        _worker(url, "clicks", "lone", prefetch=CLICKS_PREFETCH, service_s=0.0),
    ]
    steady = [("orders", 700.0), ("orders", 500.0), ("emails", 120.0), ("clicks", 400.0)]
    phases = [(queue, Phase(0.0, seconds, rate)) for queue, rate in steady]
    phases.append(("clicks", Phase(BURST_FROM * seconds, BURST_UNTIL * seconds, BURST_PER_S)))
    producers = [
        Duty(
            role="produce",
            url=url,
            queue=queue,
            name=f"{queue}-producer-{number}",
            number=number,
            phases=[phase],
        )
        for number, (queue, phase) in enumerate(phases, start=1)
    ]
    return workers + producers


def _worker(url: str, queue: str, kind: str, *, prefetch: int, service_s: float) -> Duty:
    return Duty(
        role="consume",
        url=url,
        queue=queue,
        name=f"{queue}-{kind}",
        prefetch=prefetch,
        service_s=service_s,
    )
