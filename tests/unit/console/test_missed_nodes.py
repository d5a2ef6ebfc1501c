"""Who is missed: nodes that died, not those that have left in good order."""

from __future__ import annotations

from tidegate.console.snapshot import MISSED_S, MissingNodes


def test_a_node_that_died_is_missed_for_a_while_and_until_it_is_back() -> None:
    nodes = MissingNodes()
    nodes.update(["one", "two"], 10.0)
    nodes.update(["one"], 11.0)
    assert nodes.is_to_ask(11.0)
    # Its lease has not lapsed yet.
    nodes.listed({"one", "two"}, 11.0)
    assert nodes.names(11.0) == ["two"]

    # Others have taken its queues, and its place on the list.
    nodes.update(["one"], 14.0)
    assert not nodes.is_to_ask(14.0)
    nodes.listed({"one"}, 14.0)
    assert nodes.names(14.0) == ["two"]

    nodes.update(["one", "two"], 15.0)
    assert nodes.names(15.0) == []

    nodes.update(["one"], 15.0 + MISSED_S)
    assert nodes.names(15.0 + MISSED_S) == []


def test_a_node_that_has_left_is_not_missed() -> None:
    nodes = MissingNodes()
    nodes.update(["one", "two"], 10.0)
    nodes.update(["one"], 11.0)
    nodes.listed({"one"}, 11.0)

    assert nodes.names(11.0) == []
    assert not nodes.is_to_ask(11.0)
