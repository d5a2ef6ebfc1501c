"""How long a process that starts is waited for: as long as it gets anywhere.

On a busy computer a start takes twenty times as long as on one that is idle. Whoever is ended then
begins from nothing, gets no further the next time, and never serves. So what counts is not the
time but whether the process works: one that hangs uses next to no processor time.
"""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class StartPatience:
    """Of one start."""

    # Without any work for so long, it hangs.
    IDLE_S = 20.0
    # So much processor time is work: of a process that gets a two-hundredth of a core.
    WORK_S = 0.1
    # However much it works: as long as a machine may take to join (FleetOptions.boot_deadline_s).
    MOST_S = 300.0

    def __init__(self, now: float) -> None:
        self._begun_at = self._worked_at = now
        self._used_s = 0.0

    def is_over(self, now: float, used_s: float | None) -> bool:
        """Whether it need not be waited for any longer; `used_s`: None, it has ended."""
        if used_s is not None and used_s - self._used_s >= self.WORK_S:
            self._used_s, self._worked_at = used_s, now
        return now - self._worked_at >= self.IDLE_S or now - self._begun_at >= self.MOST_S


def processor_s(pid: int) -> float | None:
    """How much processor time a process has used; None: there is none of that pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is a name in brackets that may hold anything, brackets too.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
