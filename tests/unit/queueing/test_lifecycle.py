"""The life of a message is a table: what is not in it is our bug."""

from __future__ import annotations

import pytest

from tidegate.core.errors import InternalError
from tidegate.queueing.spans import TRANSITIONS, MessageEvent, MessageState, next_state


@pytest.mark.parametrize("state", MessageState)
@pytest.mark.parametrize("event", MessageEvent)
def test_only_what_stands_in_the_table_happens(state: MessageState, event: MessageEvent) -> None:
    if event in TRANSITIONS[state]:
        assert next_state(state, event) is TRANSITIONS[state][event]
    else:
        with pytest.raises(InternalError, match=state.value):
            next_state(state, event)


def test_done_is_final_and_every_state_is_reachable() -> None:
    assert TRANSITIONS[MessageState.DONE] == {}
    reached = {MessageState.ACCEPTED}
    while more := {t for s in reached for t in TRANSITIONS[s].values()} - reached:
        reached |= more
    assert reached == set(MessageState)
