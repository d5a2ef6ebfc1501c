"""Places on a node: for all, for strangers, for an address, for a user."""

from __future__ import annotations

import pytest

from tidegate.broker.access import is_loopback
from tidegate.broker.listener import ConnectionSlot, ConnectionSlots
from tidegate.core.errors import LimitReached
from tidegate.core.runtime import NodeLimits


def client(places: ConnectionSlots, address: str, user: str) -> ConnectionSlot:
    place = places.arrive(address)
    places.log_in(place, user, is_node=False)
    places.identify(place)
    return place


def test_strangers_get_half_of_the_places() -> None:
    places = ConnectionSlots(NodeLimits(connections_max=10))
    strangers = [places.arrive(f"10.0.0.{n}") for n in range(5)]
    with pytest.raises(LimitReached, match="have not said who they are"):
        places.arrive("10.0.0.9")
    places.identify(strangers[0])
    places.arrive("10.0.0.9")


def test_an_address_and_a_user_have_their_share_and_get_it_back() -> None:
    limits = NodeLimits(
        connections_max=100, connections_per_address_max=3, connections_per_user_max=2
    )
    places = ConnectionSlots(limits)
    first = client(places, "10.0.0.1", "ann")
    client(places, "10.0.0.2", "ann")
    third = places.arrive("10.0.0.1")
    with pytest.raises(LimitReached, match="user 'ann' has 2"):
        places.log_in(third, "ann", is_node=False)
    places.log_in(third, "bob", is_node=False)
    places.arrive("10.0.0.1")
    with pytest.raises(LimitReached, match=r"10\.0\.0\.1"):
        places.arrive("10.0.0.1")
    places.leave(first)
    client(places, "10.0.0.1", "ann")


def test_other_nodes_do_not_use_up_their_address() -> None:
    places = ConnectionSlots(NodeLimits(connections_max=100, connections_per_address_max=2))
    for _ in range(10):
        place = places.arrive("10.0.0.1")
        places.log_in(place, None, is_node=True)
        places.identify(place)
    places.arrive("10.0.0.1")
    assert places.connections == 11


def test_slots_are_empty_after_all_clients_left() -> None:
    places = ConnectionSlots(NodeLimits(connections_max=1000))
    taken = [client(places, f"10.0.0.{n % 7}", f"user-{n % 3}") for n in range(50)]
    taken += [places.arrive("10.0.0.1") for _ in range(20)]
    for place in taken:
        places.leave(place)
    assert (places.connections, places.strangers) == (0, 0)
    assert not places._addresses
    assert not places._users


@pytest.mark.parametrize(
    ("address", "is_ours"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("fe80::1%eth0", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_only_loopback_is_this_machine(address: str, is_ours: bool) -> None:
    assert is_loopback(address) is is_ours
