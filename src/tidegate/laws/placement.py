"""Which machine takes the next replica, and which replica goes first.

    energy        the newest machine with a free slot, on the host that is used most already;
                  the last added goes first, so that the newest machine empties
    performance   a machine per replica, on the least loaded host; the last added goes first
                  but one that is much slower than the others goes before it (`slow`): whoever
                  stays has to do its work as well
    apart         where fewest of the same are, then as for energy: of instances that answer for
                  each other, no machine is to take all along when it dies

The unit of provisioning is the slot. Only machines that run count: one that boots has no slots yet,
and one that failed never will. A warm machine is one without work; taking it is faster than
booting, so a free slot of a working machine comes first only where that saves a machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from tidegate.core.fleet import MachineState
from tidegate.core.replication import ReplicaState
from tidegate.core.scaling import Provisioning
from tidegate.core.steering import MachineSample, ReplicaSample

RUNNING = frozenset({MachineState.UP, MachineState.WARM})


def free_slots(machine: MachineSample) -> int:
    """What fits into it now; a draining replica still sits in its slot."""
    return max(machine.slots - machine.used, 0) if machine.state in RUNNING else 0


def place(machines: Iterable[MachineSample], provisioning: Provisioning) -> int | None:
    """The machine for the next replica; None: one has to be booted."""
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
        # One that works already, then the fullest host, then the newest.
        key=lambda one: (
            one.used > 0,
            on_host[one.host] if not one.used else 0,
            one.added_at,
            one.machine_id,
        ),
    ).machine_id


def place_apart(machines: Sequence[MachineSample], together: Mapping[int, int]) -> int | None:
    """The machine for the next of those that are to be apart; None: one has to be booted.

    `together` tells how many of the same each machine has.
    """
    able = [machine for machine in machines if free_slots(machine)]
    fewest = min((together.get(one.machine_id, 0) for one in able), default=0)
    # Hosts die as machines do, and a host that nobody knows is not the same as another.
    of_host: Counter[str] = Counter()
    for machine in machines:
        if machine.host is not None:
            of_host[machine.host] += together.get(machine.machine_id, 0)
    best = [one for one in able if together.get(one.machine_id, 0) == fewest]
    least = min((_of_host(one, of_host) for one in best), default=0)
    return place([one for one in best if _of_host(one, of_host) == least], Provisioning.ENERGY)


def _of_host(machine: MachineSample, of_host: Counter[str]) -> int:
    return 0 if machine.host is None else of_host[machine.host]


def used_by_host(machines: Iterable[MachineSample]) -> Counter[str | None]:
    """Slots in use by host; machines whose host nobody knows count as one host."""
    used: Counter[str | None] = Counter()
    for machine in machines:
        if machine.state in RUNNING:
            used[machine.host] += machine.used
    return used


def host_for(machines: Sequence[MachineSample], provisioning: Provisioning) -> str | None:
    """Where the next machine is to boot: with the others, or apart; None: the provider's choice."""
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


def goes_first(
    replicas: Iterable[ReplicaSample],
    provisioning: Provisioning,
    count: int = 1,
    slow: Collection[int] = (),
) -> list[int]:
    """The replicas to remove, in this order; those that cannot be reached stay, for they may hold
    messages that nobody can see."""
    able = [one for one in replicas if one.reachable and one.state is not ReplicaState.DRAINING]
    together: Counter[int | None] = Counter(one.machine_id for one in able)
    energy = provisioning is Provisioning.ENERGY

    def rank(one: ReplicaSample) -> tuple[bool, bool, int, int]:
        # What does not serve yet costs nothing to lose.
        serving = one.state is ReplicaState.SERVING
        alone = together[one.machine_id] if energy and one.machine_id is not None else 0
        return serving, one.number not in slow, alone, -one.number

    return [one.number for one in sorted(able, key=rank)[:count]]
