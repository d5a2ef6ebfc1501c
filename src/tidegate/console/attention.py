"""The attention item of the overview: the most urgent problem, in a sentence, with advice.

node gone > breached > no consumers > dead letters grow > paused > no machine > warned
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidegate.console.model import AgreementState, Attention, Kind, Light, ServiceRow
from tidegate.console.sight import Sight
from tidegate.core.fleet import MachineState
from tidegate.core.quantities import spoken_duration
from tidegate.core.steering_words import counted

# A queue without consumers for longer than this is no longer just starting.
_ABANDONED_S = 10.0
_MUCH = 100


def attention(
    sight: Sight,
    rows: Sequence[ServiceRow],
    agreements: Mapping[tuple[Kind, str], AgreementState],
    dead_before: Mapping[str, int],
) -> Attention | None:
    """Return the most urgent problem; None if there is none.

    `dead_before` is the number of dead letters some minutes ago, by queue.
    """
    return next(_worst_first(sight, rows, agreements, dead_before), None)


def _worst_first(
    sight: Sight,
    rows: Sequence[ServiceRow],
    agreements: Mapping[tuple[Kind, str], AgreementState],
    dead_before: Mapping[str, int],
) -> Iterator[Attention]:
    yield from _nodes(sight)
    for light in (Light.BREACHED, Light.WARNED):
        if light is Light.WARNED:
            yield from _about_queues(rows, dead_before)
            yield from _machines(sight)
        for row in _by_budget(rows):
            if row.light is light:
                yield _of_agreement(row, agreements.get((row.kind, row.name)))


def _nodes(sight: Sight) -> Iterator[Attention]:
    if not sight.numbers.nodes:
        yield Attention(
            light=Light.BREACHED,
            service="",
            kind=None,
            text="No node answers: " + (sight.complaints[0] if sight.complaints else "none is up"),
            advice="Look whether `tidegate up` runs, and at its log.",
        )
    for name in sight.nodes_gone:
        yield Attention(
            light=Light.BREACHED,
            service="",
            kind=None,
            text=f"Node {name} does not answer any more.",
            advice="If it did not end by itself, its queues go to others when its lease has "
            "lapsed; `tidegate up` starts it again.",
        )
    answered = {node.member_id for node in sight.numbers.nodes}
    for machine in sight.fleet.machines:
        runs = machine.state in (MachineState.UP, MachineState.WARM)
        if runs and machine.member_id is not None and machine.member_id not in answered:
            yield Attention(
                light=Light.BREACHED,
                service="",
                kind=None,
                text=f"The node of machine {machine.machine_id} does not answer.",
                advice="Its queues go to others when its lease has lapsed; see the fleet.",
            )


def _machines(sight: Sight) -> Iterator[Attention]:
    failed = [one for one in sight.fleet.machines if one.state is MachineState.FAILED]
    booting = [one for one in sight.fleet.machines if one.state is MachineState.BOOTING]
    waiting = sight.fleet.instances_waiting
    if waiting and not booting:
        yield Attention(
            light=Light.WARNED,
            service="",
            kind=None,
            text=f"{counted(waiting, 'instance')} without a machine, and none is booting.",
            advice="Allow more machines (fleet.machines_max), or start `tidegate machine`.",
        )
    if failed and sight.fleet.machines:
        newest = max(failed, key=lambda one: one.ordered_at)
        why = newest.detail or "nobody knows why"
        if sight.at - newest.ordered_at < 600.0:
            yield Attention(
                light=Light.WARNED,
                service="",
                kind=None,
                text=f"Machine {newest.machine_id} has failed: {why}",
                advice="The leader orders another; if that fails too, see fleet.boot.",
            )


def _about_queues(
    rows: Sequence[ServiceRow], dead_before: Mapping[str, int]
) -> Iterator[Attention]:
    queues = [row for row in rows if row.kind is Kind.QUEUE]
    of_dead = {row.dead_queue for row in queues if row.dead_queue}
    worst = sorted(queues, key=lambda row: -(row.oldest_age_s or 0.0))
    for row in worst:
        # A queue of dead letters needs no consumers.
        if row.name in of_dead or row.paused or not row.waiting or row.consumers:
            continue
        if (row.oldest_age_s or 0.0) > _ABANDONED_S and row.out_per_s == 0.0:
            yield Attention(
                light=Light.WARNED,
                service=row.name,
                kind=Kind.QUEUE,
                text=f"Nobody consumes from {row.name}: {counted(row.waiting, 'message')} there, "
                f"the oldest for {spoken_duration(row.oldest_age_s or 0.0)}.",
                advice="Start its workers.",
            )
    for row in queues:
        more = row.dead - dead_before.get(row.name, row.dead)
        if more > 0:
            yield Attention(
                light=Light.WARNED,
                service=row.name,
                kind=Kind.QUEUE,
                text=f"{row.name} has given up {counted(more, 'message')} in the last minutes; "
                f"{row.dead:,} in {row.dead_queue}.",
                advice="Read there why; redrive them when it is mended.",
            )
    for row in sorted(queues, key=lambda row: -row.waiting):
        if row.paused and row.waiting >= _MUCH:
            yield Attention(
                light=Light.WARNED,
                service=row.name,
                kind=Kind.QUEUE,
                text=f"{row.name} is paused, with {counted(row.waiting, 'message')} waiting.",
                advice="Resume it when its consumers may go on.",
            )


def _by_budget(rows: Sequence[ServiceRow]) -> list[ServiceRow]:
    return sorted(rows, key=lambda row: 1.0 if row.budget_left is None else row.budget_left)


def _of_agreement(row: ServiceRow, state: AgreementState | None) -> Attention:
    what = "breaches" if row.light is Light.BREACHED else "is close to breaching"
    evidence = ""
    if state is not None:
        said = [one.evidence for one in state.promises if one.light is row.light and one.evidence]
        evidence = f": {said[0]}" if said else ""
    budget = ""
    if row.budget_left is not None:
        budget = f" {max(row.budget_left, 0.0):.0%} of its error budget is left."
    doing = "" if state is None or not state.doing else f"Being done: {state.doing}"
    return Attention(
        light=row.light,
        service=row.name,
        kind=row.kind,
        text=f"{row.name} {what} its agreement{evidence}.{budget}",
        advice=doing or "See its page for what was decided, and why.",
    )
