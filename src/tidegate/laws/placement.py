"""Placement: the machine for the next replica, and the order in which replicas are removed.

    energy        place on the newest machine with work and a free slot, else on an empty machine
                  on the host that is used most; remove from the machine with the fewest replicas
    performance   place on an empty machine on the least loaded host; remove the last added
    apart         place where fewest of the same group are, then as for energy: a machine that
                  fails should not take all instances that replace each other

Both orders of removal take starting replicas first. Replicas that are much slower than the rest
(`slow`) follow, because the remaining ones must do their work as well.

The unit of provisioning is the slot. Only running machines count: a booting machine has no slots
yet, and a failed machine never will. A warm machine is a running machine without work. Using it is
faster than booting, so a free slot of a working machine is preferred only where that saves a
machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from tidegate.core.decisions import MachineSample, ReplicaSample
from tidegate.core.machines import MachineState
from tidegate.core.topology import Provisioning, ReplicaState

RUNNING = frozenset({MachineState.UP, MachineState.WARM})


def free_slots(machine: MachineSample) -> int:
    """Return the number of replicas that the machine can take now.

    A draining replica still uses its slot.
    """
    return max(machine.slots - machine.used, 0) if machine.state in RUNNING else 0


def place_replica(machines: Iterable[MachineSample], provisioning: Provisioning) -> int | None:
    """Return the id of the machine for the next replica, or `None` if a machine must be booted."""
    able = [machine for machine in machines if free_slots(machine)]
    if not able:
        return None
    on_host = used_by_host(machines)
    if provisioning is Provisioning.PERFORMANCE:
        alone = [machine for machine in able if not machine.used]
        if not alone:
            return None
        return min(
            alone, key=lambda one: (on_host[one.host], -one.added_at, -one.machine_id)
        ).machine_id
    return max(
        able,
        # Prefer a machine that already works, then the fullest host, then the newest machine.
        key=lambda one: (
            one.used > 0,
            on_host[one.host] if not one.used else 0,
            one.added_at,
            one.machine_id,
        ),
    ).machine_id


def place_replica_apart(
    machines: Sequence[MachineSample], together: Mapping[int, int]
) -> int | None:
    """Return the machine for the next member of a group to be kept apart, or `None` to boot one.

    `together` maps machine ids to the number of members on each machine.
    """
    able = [machine for machine in machines if free_slots(machine)]
    fewest = min((together.get(one.machine_id, 0) for one in able), default=0)
    # Hosts fail as machines do. Machines with an unknown host are not taken to share one.
    of_host: Counter[str] = Counter()
    for machine in machines:
        if machine.host is not None:
            of_host[machine.host] += together.get(machine.machine_id, 0)
    best = [one for one in able if together.get(one.machine_id, 0) == fewest]
    least = min((_of_host(one, of_host) for one in best), default=0)
    return place_replica(
        [one for one in best if _of_host(one, of_host) == least], Provisioning.ENERGY
    )


def _of_host(machine: MachineSample, of_host: Counter[str]) -> int:
    return 0 if machine.host is None else of_host[machine.host]


def used_by_host(machines: Iterable[MachineSample]) -> Counter[str | None]:
    """Return the slots in use by host. Machines with an unknown host count as one host."""
    used: Counter[str | None] = Counter()
    for machine in machines:
        if machine.state in RUNNING:
            used[machine.host] += machine.used
    return used


def host_for(machines: Sequence[MachineSample], provisioning: Provisioning) -> str | None:
    """Return the host on which the next machine is to boot, or `None` to let the provider choose.

    Under `energy` that is the host with the most machines, under `performance` the least loaded
    one.
    """
    count: Counter[str] = Counter(
        machine.host
        for machine in machines
        if machine.host is not None and machine.state in RUNNING | {MachineState.BOOTING}
    )
    if not count:
        return None
    used = used_by_host(machines)
    if provisioning is Provisioning.PERFORMANCE:
        return min(count, key=lambda host: (used[host], count[host], host))
    return max(count, key=lambda host: (count[host], used[host], host))


def removal_order(
    replicas: Iterable[ReplicaSample],
    provisioning: Provisioning,
    count: int = 1,
    slow: Collection[int] = (),
) -> list[int]:
    """Return the numbers of `count` replicas to remove, in order.

    Unreachable replicas stay, because they may hold messages that no sample shows.
    """
    able = [one for one in replicas if one.reachable and one.state is not ReplicaState.DRAINING]
    together: Counter[int | None] = Counter(one.machine_id for one in able)
    energy = provisioning is Provisioning.ENERGY

    def rank(one: ReplicaSample) -> tuple[bool, bool, int, int]:
        # Removing a replica that does not serve yet costs nothing.
        serving = one.state is ReplicaState.SERVING
        alone = together[one.machine_id] if energy and one.machine_id is not None else 0
        return serving, one.number not in slow, alone, -one.number

    return [one.number for one in sorted(able, key=rank)[:count]]


# -- warm_pool --
# The warm pool: the number of machines to keep warm, so that growth never waits for a boot.
#
#     NPP = ceil(sla_delta · boot_s / machine_capacity)
#
# `sla_delta` is the largest sustained growth of the production rate (msg/s²). `boot_s` is the boot
# time of a machine. `machine_capacity` is the msg/s of a machine with all its slots filled. The
# paper's check value is ceil(4 · 96.9 / 200) = 2.


ROUNDING = 1e-9


def warm_machines(sla_delta: float, boot_s: float, machine_capacity_per_s: float) -> int:
    """Return NPP, the number of booted machines to keep without work."""
    if not machine_capacity_per_s > 0.0:
        raise ValueError(f"a machine's capacity is above 0 msg/s, not {machine_capacity_per_s}")
    if not (math.isfinite(sla_delta) and math.isfinite(boot_s) and boot_s >= 0.0):
        raise ValueError(f"growth {sla_delta} and boot time {boot_s} must be known numbers")
    # A falling load has a negative growth and needs no warm machine.
    machines = sla_delta * boot_s / machine_capacity_per_s
    # Without rounding, 1.1 · 100 / 110 is 1.0000000000000002 and would need two machines.
    return max(math.ceil(machines * (1.0 - ROUNDING)), 0)
