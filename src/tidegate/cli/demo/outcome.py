"""The result of a run of the scenario."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.cli.demo.account import Account
from tidegate.cli.demo.moments import Course


@dataclass
class Outcome:
    """The result, filled in step by step; an empty text means that the step had no effect."""

    course: Course = field(default_factory=Course)
    killed: str = ""
    shifted: str = ""
    adapted: str = ""
    # The number of replicas at the end.
    replicas_left: int = 0
    # The leader's totals when the first step began, and when the producers stopped. What happens
    # later is cleanup.
    opened: Account | None = None
    closed: Account | None = None
    # Whether every confirmed message was handled at the end.
    drained: bool = False

    @property
    def windows_of_leader(self) -> dict[str, tuple[int, int, int]]:
        """The windows met, warned and breached between the two totals, for each agreement."""
        if self.opened is None or self.closed is None:
            return {}
        return self.closed.since(self.opened)
