"""How long an instance may take to say that it is well: its machine, doors and probe agree on it.

Who were less patient than the machine would send nothing, ever, to an instance that the machine
calls ready; the usual health path is a page like others, and asks the application's own loop.
"""

from __future__ import annotations

HEALTH_ANSWER_S = 2.0
