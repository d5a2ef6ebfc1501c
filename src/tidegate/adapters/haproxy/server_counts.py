"""Counts of one server."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.adapters.haproxy.runtime_socket import Row, number


@dataclass(frozen=True)
class ServerCounts:
    """Totals that add up over servers and over HAProxy processes."""

    sent: int = 0
    answered: int = 0
    server_errors: int = 0
    failed: int = 0
    # Responses that began and were aborted.
    broken_off: int = 0

    def __add__(self, other: ServerCounts) -> ServerCounts:
        return ServerCounts(
            self.sent + other.sent,
            self.answered + other.answered,
            self.server_errors + other.server_errors,
            self.failed + other.failed,
            self.broken_off + other.broken_off,
        )

    def without(self, other: ServerCounts) -> ServerCounts:
        """Return the difference, with no count below 0."""
        return ServerCounts(
            max(self.sent - other.sent, 0),
            max(self.answered - other.answered, 0),
            max(self.server_errors - other.server_errors, 0),
            max(self.failed - other.failed, 0),
            max(self.broken_off - other.broken_off, 0),
        )

    def at_least(self, other: ServerCounts) -> ServerCounts:
        """Return the larger of the two values, for each count."""
        return self + other.without(self)


def server_counts(row: Row) -> ServerCounts:
    """Return the counts in a server's row of `show stat`."""
    answered = sum(number(row, f"hrsp_{kind}") for kind in ("2xx", "3xx", "4xx", "5xx", "other"))
    failed = number(row, "econ") + number(row, "eresp")
    return ServerCounts(
        number(row, "stot"), answered, number(row, "hrsp_5xx"), failed, number(row, "srv_abrt")
    )
