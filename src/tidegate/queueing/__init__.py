"""The states of a message in a queue, as a table. The diagram in the docs is made from it."""

from __future__ import annotations

import enum

from tidegate.core.errors import InternalError


class State(enum.Enum):
    """The state of a message."""

    ACCEPTED = "accepted"  # In memory, not yet on disk: no client may see it
    READY = "ready"
    SCHEDULED = "scheduled"  # Waits for its time
    LEASED = "leased"
    LEAVING = "leaving"  # On its way to another queue: no client may get it here
    DONE = "done"


class Event(enum.Enum):
    """What changes the state of a message."""

    STORED = "stored"
    STORED_FOR_LATER = "stored for later"
    DUE = "due"
    DELIVERED = "delivered"
    ACKED = "acked"
    RETURNED = "returned"
    LEASE_EXPIRED = "lease expired"
    CONSUMER_GONE = "consumer gone"
    PUT_OFF = "put off"
    GIVEN_UP = "given up"
    MOVED = "moved"
    STAYED = "stayed"
    EXPIRED = "expired"
    PURGED = "purged"


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.ACCEPTED: {Event.STORED: State.READY, Event.STORED_FOR_LATER: State.SCHEDULED},
    State.READY: {
        Event.DELIVERED: State.LEASED,
        # Acknowledged by its id, by a client that has read it without a lease.
        Event.ACKED: State.DONE,
        Event.PURGED: State.DONE,
        Event.EXPIRED: State.DONE,
        Event.GIVEN_UP: State.LEAVING,
    },
    State.SCHEDULED: {
        Event.DUE: State.READY,
        Event.PURGED: State.DONE,
        Event.EXPIRED: State.DONE,
        Event.GIVEN_UP: State.LEAVING,
    },
    State.LEASED: {
        Event.ACKED: State.DONE,
        Event.RETURNED: State.READY,
        Event.LEASE_EXPIRED: State.READY,
        Event.CONSUMER_GONE: State.READY,
        Event.PUT_OFF: State.SCHEDULED,
        Event.GIVEN_UP: State.LEAVING,
    },
    State.LEAVING: {Event.MOVED: State.DONE, Event.STAYED: State.READY},
    State.DONE: {},
}


def after(state: State, event: Event) -> State:
    """Return the state that follows; any other event is a bug and raises `InternalError`."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise InternalError(f"a message that is {state.value} cannot be {event.value}") from None


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> accepted: put"]
    for state, moves in TRANSITIONS.items():
        lines += [f"    {state.value} --> {to.value}: {event.value}" for event, to in moves.items()]
    return "\n".join([*lines, "    done --> [*]", "```"])
