"""The life of a message is a table: what is not in it is our bug."""

from __future__ import annotations

import pytest

from tidegate.core.errors import InternalError
from tidegate.queueing.lifecycle import TRANSITIONS, Event, State, after


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_only_what_stands_in_the_table_happens(state: State, event: Event) -> None:
    if event in TRANSITIONS[state]:
        assert after(state, event) is TRANSITIONS[state][event]
    else:
        with pytest.raises(InternalError, match=state.value):
            after(state, event)


def test_what_is_done_stays_done_and_everything_can_get_there() -> None:
    assert TRANSITIONS[State.DONE] == {}
    reached = {State.ACCEPTED}
    while more := {t for s in reached for t in TRANSITIONS[s].values()} - reached:
        reached |= more
    assert reached == set(State)
