"""The settings of how a logical queue scales, named as in KEDA where they mean the same.

In a settings file:

    [queues.orders]
    replicas = { min = 1, max = 8 }       KEDA: minReplicaCount, maxReplicaCount
    policy = "feed-forward"
    max_wait = "2s"                       the longest wait; max_load follows from it
    worker = "shop.jobs:app"
    slots_per_machine = 2
    polling_interval = "1s"               KEDA: pollingInterval
    cooldown_period = "60s"               KEDA: cooldownPeriod, here before every scale-in
"""

from __future__ import annotations

import enum

import msgspec

REPLICAS_MAX = 10_000
# A policy that predicts the load need not add replicas one by one.
STEP_MAX_AHEAD = 4


class ScalingPolicy(enum.StrEnum):
    """The law that decides how many replicas there are."""

    FIXED = "fixed"  # always `replicas.min` replicas
    LOAD = "load"  # Elastic queues: waiting messages per replica stay between min_load and max_load
    CLIENTS = "clients"  # Replicated queues: clients compared with the capacity for clients
    FEED_FORWARD = "feed-forward"  # predicted arrival rate, corrected by oldest age
    LENGTH = "length"  # KEDA: waiting messages divided by queue_length
    AGREEMENT = "agreement"  # the waits, oldest age and throughput that the agreement promises


class Steering(enum.StrEnum):
    """Whether the law's decisions are executed."""

    AUTO = "auto"
    RECOMMEND = "recommend-only"  # decisions are made and explained, but not executed
    MANUAL = "manual"  # an override: `replicas_wanted` replicas


class Provisioning(enum.StrEnum):
    """Which machine gets a new replica."""

    ENERGY = "energy"  # the fewest machines, then the fewest hosts
    PERFORMANCE = "performance"  # a machine each, on the least loaded host


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least and the most replicas."""

    min: int = 1
    max: int = 1


class Scaling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a logical queue scales. Loads are waiting messages per replica."""

    replicas: Range = Range()
    policy: ScalingPolicy = ScalingPolicy.LOAD
    steering: Steering = Steering.AUTO
    # The number of replicas if `steering` is manual.
    replicas_wanted: int | None = None
    min_load: float = 50.0
    max_load: float = 200.0
    # The longest wait of a message; if given, max_load is this time multiplied by a replica's rate.
    max_wait_s: float | None = None
    # Target of the policy "length": waiting messages per replica.
    queue_length: float = 100.0
    # Policy "clients": the best number of clients per replica. `None` means the learned one, or 3.
    capacity_clients: float | None = None
    # Messages per second of one replica with its workers; `None` means measured.
    capacity_per_s: float | None = None
    # Between two decisions.
    polling_interval_s: float = 1.0
    # The pause after a scale-up, until its effect can be measured (the papers' inhibition).
    inhibition_s: float = 10.0
    # The pause before a scale-in after any change.
    cooldown_period_s: float = 60.0
    # The most replicas that one decision may add or begin to remove. `None` means 4 for
    # feed-forward and agreement, else 1.
    step_max: int | None = None
    # Older measurements are not used.
    stale_s: float = 5.0
    # How long a scale-up that lowered throughput is remembered.
    reversal_memory_s: float = 600.0
    # The code that a replica's workers run; `None` means that workers are started by other means.
    worker: str | None = None
    workers_per_replica: int = 1
    # An artificial limit on deliveries per replica, for experiments on one computer; `None` means
    # none.
    rate_max_per_s: float | None = None
    slots_per_machine: int = 1
    provisioning: Provisioning = Provisioning.ENERGY
    # Machines kept warm. `None` means computed from learned or given values, else 0.
    warm: int | None = None
    boot_s: float | None = None
    # The largest growth of the arrival rate to keep up with, in msg/s².
    sla_delta: float | None = None
    # An override of the shares, by number of the replica; `None` means that the law decides.
    shares: dict[int, float] | None = None
    # The agreement as TOML. It is evaluated under every policy, and obeyed under "agreement".
    agreement: str | None = None

    @property
    def replicas_per_step(self) -> int:
        """`step_max`, or the best value for the policy (docs/simulation.md)."""
        if self.step_max is not None:
            return self.step_max
        ahead = (ScalingPolicy.FEED_FORWARD, ScalingPolicy.AGREEMENT)
        return STEP_MAX_AHEAD if self.policy in ahead else 1


DEFAULT_SCALING = Scaling()
