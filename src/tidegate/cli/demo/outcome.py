"""What came of the story, for whoever judges it and learns from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.cli.demo.account import Account
from tidegate.cli.demo.moments import Course


@dataclass
class Outcome:
    """Filled in chapter by chapter; "" is what did not happen."""

    course: Course = field(default_factory=Course)
    killed: str = ""
    shifted: str = ""
    adapted: str = ""
    # Replicas that were left in the end.
    replicas_left: int = 0
    # By the leader: when the first chapter began, and when the last customer went. What comes then
    # is no work, but tidying up.
    opened: Account | None = None
    closed: Account | None = None
    # Everything that was confirmed was handled in the end.
    drained: bool = False

    @property
    def windows_of_leader(self) -> dict[str, tuple[int, int, int]]:
        """Of each agreement between the two accounts: met, warned, breached."""
        if self.opened is None or self.closed is None:
            return {}
        return self.closed.since(self.opened)
