"""Decisions as text: measurements and actions, for `tidegate explain` and the console."""

from __future__ import annotations

from tidegate.core.fleet import SlotKind
from tidegate.core.steering import (
    PERSON,
    AddInstance,
    AddReplica,
    Admit,
    AnyAction,
    Boot,
    CancelDrain,
    CancelPending,
    Decision,
    Drain,
    DrainInstance,
    Exchange,
    Halt,
    KeepUp,
    MakeSpare,
    Migrate,
    Place,
    Promote,
    RemoveInstance,
    Retire,
    SetConcurrency,
    SetShares,
    Weigh,
)

Line = tuple[str, str]


def lines_of(decision: Decision) -> list[Line]:
    """Return the labelled lines of a decision, without empty ones."""
    done = ", ".join(map(sentence, decision.actions))
    if decision.law != PERSON:
        done = done or "nothing"
    lines = [
        ("measured", figures(decision.inputs)),
        ("gave", figures(decision.outputs)),
        ("because", decision.reason),
        ("done" if decision.carried_out else "wanted", done),
        ("outcome", decision.outcome),
        ("otherwise", decision.otherwise),
    ]
    return [(label, text) for label, text in lines if text]


def figures(numbers: dict[str, float]) -> str:
    """Return all numbers with their names."""
    return ", ".join(f"{name} {figure(value)}" for name, value in numbers.items())


def figure(value: float) -> str:
    """Return a number with four significant digits, or as a whole number from 1000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def sentence(action: AnyAction) -> str:
    """Return a description of an action."""
    match action:
        case AddReplica(count):
            return f"{counted(count, 'replica')} more"
        case Drain(number):
            return f"replica {number} begins to drain"
        case CancelDrain(number):
            return f"replica {number} stays after all"
        case Retire(number):
            return f"replica {number} is empty and goes"
        case CancelPending(count):
            return f"{counted(count, 'ordered replica')} not needed any more"
        case SetShares(shares):
            parts = ", ".join(f"{number}: {100 * part:.3g} %" for number, part in shares.items())
            return f"shares {parts}"
        case Exchange(source, target, count):
            giver, taker = (f"replica {one}" if one else "the alias" for one in (source, target))
            return f"about {counted(count, 'message')} from {giver} to {taker}"
        case Migrate(role, source, target, count):
            return f"{counted(count, role)} from replica {source} to {target}"
        case KeepUp():
            return "the prefetch of its consumers keeps up with their handlers from now on"
        case Boot(slots, warm):
            return f"boots a {'warm ' if warm else ''}machine of {counted(slots, 'slot')}"
        case Halt(machine_id):
            return f"halts machine {machine_id}"
        case Place(queue, machine_id, kind):
            article = "an" if kind is SlotKind.INSTANCE else "a"
            return f"{article} {kind} of {queue} comes to machine {machine_id}"
        case AddInstance(count, is_spare):
            return f"{counted(count, 'spare' if is_spare else 'instance')} more"
        case Promote(instance_id):
            return f"spare {instance_id} serves"
        case MakeSpare(instance_id):
            return f"instance {instance_id} becomes a spare"
        case DrainInstance(instance_id):
            return f"instance {instance_id} begins to drain"
        case RemoveInstance(instance_id):
            return f"instance {instance_id} goes"
        case SetConcurrency(instance_id, concurrency):
            return f"instance {instance_id} has {counted(concurrency, 'request')} at a time"
        case Weigh(weights):
            parts = ", ".join(f"{one}: {weight:.3g}" for one, weight in weights.items())
            return f"weights {parts}"
        case Admit(in_flight_max):
            if in_flight_max is None:
                return "every request is let in"
            return f"{counted(in_flight_max, 'request')} in hand at most, others are refused"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 replica`, `2 replicas`."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"
