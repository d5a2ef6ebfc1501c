"""One queue in memory, without I/O: lanes, leases, fairness, and the states of a message.

This module has the states as a table. The diagram in the docs is made from it.
"""

from __future__ import annotations

import enum

from tidegate.core.errors import InternalError


class MessageState(enum.Enum):
    """The state of a message."""

    ACCEPTED = "accepted"  # In memory, not yet on disk: no client may see it
    READY = "ready"
    SCHEDULED = "scheduled"  # Waits for its time
    LEASED = "leased"
    LEAVING = "leaving"  # On its way to another queue: no client may get it here
    DONE = "done"


class MessageEvent(enum.Enum):
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


TRANSITIONS: dict[MessageState, dict[MessageEvent, MessageState]] = {
    MessageState.ACCEPTED: {
        MessageEvent.STORED: MessageState.READY,
        MessageEvent.STORED_FOR_LATER: MessageState.SCHEDULED,
    },
    MessageState.READY: {
        MessageEvent.DELIVERED: MessageState.LEASED,
        # Acknowledged by its id, by a client that has read it without a lease.
        MessageEvent.ACKED: MessageState.DONE,
        MessageEvent.PURGED: MessageState.DONE,
        MessageEvent.EXPIRED: MessageState.DONE,
        MessageEvent.GIVEN_UP: MessageState.LEAVING,
    },
    MessageState.SCHEDULED: {
        MessageEvent.DUE: MessageState.READY,
        MessageEvent.PURGED: MessageState.DONE,
        MessageEvent.EXPIRED: MessageState.DONE,
        MessageEvent.GIVEN_UP: MessageState.LEAVING,
    },
    MessageState.LEASED: {
        MessageEvent.ACKED: MessageState.DONE,
        MessageEvent.RETURNED: MessageState.READY,
        MessageEvent.LEASE_EXPIRED: MessageState.READY,
        MessageEvent.CONSUMER_GONE: MessageState.READY,
        MessageEvent.PUT_OFF: MessageState.SCHEDULED,
        MessageEvent.GIVEN_UP: MessageState.LEAVING,
    },
    MessageState.LEAVING: {
        MessageEvent.MOVED: MessageState.DONE,
        MessageEvent.STAYED: MessageState.READY,
    },
    MessageState.DONE: {},
}


def next_state(state: MessageState, event: MessageEvent) -> MessageState:
    """Return the state that follows; any other event is a bug and raises `InternalError`."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise InternalError(f"a message that is {state.value} cannot be {event.value}") from None


def state_diagram() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> accepted: put"]
    for state, moves in TRANSITIONS.items():
        lines += [f"    {state.value} --> {to.value}: {event.value}" for event, to in moves.items()]
    return "\n".join([*lines, "    done --> [*]", "```"])
