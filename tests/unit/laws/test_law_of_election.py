"""Election and provisioning by clients, against the paper's algorithms worked out by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.topology import MemberRole
from tidegate.laws.scaling.clients import (
    ElectionChange,
    ReplicaLoad,
    capacity_change,
    client_transfers,
    elect,
    election_load,
    on_join,
    on_leave,
    removable,
)

P, C = MemberRole.PRODUCER, MemberRole.CONSUMER

# Joins and leaves one after the other into a queue with one replica of capacity 3, the inhibition
# long over each time. What happens: (event, what the law says, clients per replica afterwards).
STORY = [
    # L_c = 0, 1/3, 2/3: the only replica takes all three.
    (("join", P), "elected 1", {1: (1, 0)}),
    (("join", C), "elected 1", {1: (1, 1)}),
    (("join", C), "elected 1", {1: (1, 2)}),
    # L_c = 3/3 ≥ 1: a second replica, x = (1, 0): it goes there.
    (("join", P), "create, elected 2", {1: (1, 2), 2: (1, 0)}),
    # L_c = 4/6; y = (1, 0): both go to the second.
    (("join", C), "elected 2", {1: (1, 2), 2: (1, 1)}),
    (("join", C), "elected 2", {1: (1, 2), 2: (1, 2)}),
    # L_c = 6/6 ≥ 1: a third.
    (("join", C), "create, elected 3", {1: (1, 2), 2: (1, 2), 3: (0, 1)}),
    # x = (1/2, 1/2, 0): the third; 8 clients.
    (("join", P), "elected 3", {1: (1, 2), 2: (1, 2), 3: (1, 1)}),
    # L_c = 7/9 < 1, but C_i = 3 ≤ 9 − 7 does not hold: nobody goes.
    (("leave", C, 1), "nothing", {1: (1, 1), 2: (1, 2), 3: (1, 1)}),
    # 3 ≤ 9 − 6: 1 and 3 have two clients each; the last added is marked.
    (("leave", C, 2), "mark 3", {1: (1, 1), 2: (1, 1), 3: (1, 1)}),
    # ΣC of the unmarked is 6, L_c = 6/6 ≥ 1: the third is unmarked before a fourth is made;
    # y = 1/3 each, L equal, so the smallest number.
    (("join", C), "unmark 3, elected 1", {1: (1, 2), 2: (1, 1), 3: (1, 1)}),
    # 3 ≤ 9 − 7 does not hold, then 3 ≤ 9 − 6 does and the third has the fewest.
    (("leave", P, 3), "mark 3", {1: (1, 2), 2: (1, 1), 3: (0, 1)}),
    # L_c = 5/6 < 1, 3 ≤ 6 − 5 does not hold. The third gets no more clients: y = (2/3, 1/3).
    (("leave", P, 2), "nothing", {1: (1, 2), 2: (0, 1), 3: (0, 1)}),
    (("join", P), "elected 2", {1: (1, 2), 2: (1, 1), 3: (0, 1)}),
    # Marked and empty: it goes, and the inhibition begins.
    (("leave", C, 3), "remove 3", {1: (1, 2), 2: (1, 1)}),
    # 3 ≤ 6 − 4 does not hold, then 3 ≤ 6 − 3 does and the first has the fewest.
    (("leave", C, 1), "nothing", {1: (1, 1), 2: (1, 1)}),
    (("leave", C, 1), "mark 1", {1: (1, 0), 2: (1, 1)}),
]


def test_joins_and_leaves_as_worked_out_by_hand() -> None:
    clients = {1: (0, 0)}
    marked: set[int] = set()
    for event, said, after in STORY:
        standings = [
            ReplicaLoad(number, producers, consumers, marked=number in marked)
            for number, (producers, consumers) in sorted(clients.items())
        ]
        if event[0] == "join":
            change = on_join(event[1], standings)
            number = change.elected
            if change.create:
                number = max(clients) + 1
                clients[number] = (0, 0)
            assert number is not None
            clients[number] = _plus(clients[number], event[1], 1)
            marked.discard(change.unmark or 0)
        else:
            number = event[2]
            clients[number] = _plus(clients[number], event[1], -1)
            standings = [
                ReplicaLoad(one, producers, consumers, marked=one in marked)
                for one, (producers, consumers) in sorted(clients.items())
            ]
            change = on_leave(number, standings)
            if change.mark:
                marked.add(change.mark)
            if change.remove:
                del clients[change.remove]
        assert _said(change, number) == said, (event, change)
        assert clients == after, event


def _plus(counts: tuple[int, int], role: MemberRole, one: int) -> tuple[int, int]:
    producers, consumers = counts
    return (producers + one, consumers) if role is P else (producers, consumers + one)


def _said(change: ElectionChange, elected: int) -> str:
    words = []
    if change.create:
        words.append("create")
    words += [
        f"{name} {number}"
        for name in ("unmark", "mark", "remove")
        if (number := getattr(change, name)) is not None
    ]
    if change.create or change.elected is not None:
        words.append(f"elected {elected}")
    return ", ".join(words) or "nothing"


def test_while_inhibited_nothing_is_created_or_marked_but_clients_are_elected() -> None:
    full = [ReplicaLoad(1, 1, 2)]
    assert on_join(C, full, inhibited=True) == ElectionChange(elected=1, rule="elected")
    idle = [ReplicaLoad(1, 1, 0), ReplicaLoad(2)]
    assert on_leave(1, idle, inhibited=True).mark is None
    assert on_leave(1, idle).mark == 2


def test_a_marked_replica_with_messages_left_does_not_go() -> None:
    held = [ReplicaLoad(1, 1, 1), ReplicaLoad(2, marked=True, messages=1)]
    assert on_leave(2, held).remove is None
    assert on_leave(2, [held[0], held[1]._replace(messages=0)]).remove == 2


def test_busy_machines_count_as_load_and_keep_replicas() -> None:
    two = [ReplicaLoad(1, 1, 0), ReplicaLoad(2)]
    assert election_load(two) == 1 / 6
    assert election_load(two, 1.2) == 1.2
    assert on_join(P, two, resource_load=1.2).create
    # 0.5 of two machines is all of one.
    assert removable(two, 0.5) is None
    assert removable(two, 0.3) == 2


def test_the_last_replica_never_goes() -> None:
    assert removable([ReplicaLoad(1)]) is None
    assert removable([ReplicaLoad(1), ReplicaLoad(2, marked=True)]) is None
    assert on_leave(1, [ReplicaLoad(1, marked=True)]).remove is None


def test_a_larger_replica_gets_more_clients() -> None:
    # Fair shares 1/4 and 3/4: 2 of 8 and 6 of 8.
    replicas = [ReplicaLoad(1, capacity_clients=2.0), ReplicaLoad(2, capacity_clients=6.0)]
    for _ in range(8):
        number = elect(C, replicas)
        replicas = [
            one._replace(consumers=one.consumers + (one.number == number)) for one in replicas
        ]
    assert [one.consumers for one in replicas] == [2, 6]


standings = st.lists(
    st.builds(
        ReplicaLoad,
        number=st.integers(1, 30),
        producers=st.integers(0, 20),
        consumers=st.integers(0, 20),
        capacity_clients=st.sampled_from([1.0, 2.0, 3.0, 6.0]),
        marked=st.booleans(),
        messages=st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda one: one.number,
)


def _distance(role: MemberRole, replicas: list[ReplicaLoad], newcomer: int) -> float:
    """How far from the best distribution, when the newcomer has come."""
    total = sum(one.of(role) for one in replicas) + 1
    capacity = sum(one.capacity_clients for one in replicas)
    return sum(
        ((one.of(role) + (one.number == newcomer)) / total - one.capacity_clients / capacity) ** 2
        for one in replicas
    )


@given(standings, st.sampled_from([P, C]))
def test_no_other_choice_ends_closer_to_the_best_distribution(
    replicas: list[ReplicaLoad], role: MemberRole
) -> None:
    elected = elect(role, replicas)
    open_ = [one for one in replicas if not one.marked]
    if not open_:
        assert elected is None
        return
    assert elected in {one.number for one in open_}
    best = _distance(role, open_, elected)
    assert all(best <= _distance(role, open_, one.number) + 1e-9 for one in open_)


@given(standings)
def test_removal_leaves_enough_client_capacity(replicas: list[ReplicaLoad]) -> None:
    number = removable(replicas)
    if number is not None:
        left = [one for one in replicas if not one.marked and one.number != number]
        assert left
        clients = sum(one.clients for one in replicas)
        assert clients <= sum(one.capacity_clients for one in left) + 1e-9


@given(standings)
def test_looking_again_after_a_change_asks_for_no_change_back(replicas: list[ReplicaLoad]) -> None:
    change = capacity_change(replicas)
    if change.mark is not None:
        after = [
            one._replace(marked=True) if one.number == change.mark else one for one in replicas
        ]
        assert capacity_change(after).unmark is None
        assert not capacity_change(after).create
    if change.create:
        grown = [*replicas, ReplicaLoad(99, capacity_clients=3.0)]
        assert capacity_change(grown).mark != 99 or election_load(replicas) <= 1.0


@given(standings, st.sampled_from([P, C]))
def test_migration_ends_nearest_to_fair_and_then_rests(
    replicas: list[ReplicaLoad], role: MemberRole
) -> None:
    moved = replicas
    for move in client_transfers(role, replicas):
        field = "producers" if role is P else "consumers"
        moved = [
            one._replace(**{field: one.of(role) - move.clients})
            if one.number == move.source
            else one._replace(**{field: one.of(role) + move.clients})
            if one.number == move.target
            else one
            for one in moved
        ]
    assert sum(one.of(role) for one in moved) == sum(one.of(role) for one in replicas)
    assert all(one.of(role) >= 0 for one in moved)
    if any(not one.marked for one in replicas):
        assert all(one.of(role) == 0 for one in moved if one.marked)
        assert client_transfers(role, moved) == []
