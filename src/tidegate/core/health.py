"""How long an instance may take to answer a health check.

Machines, doors and the probe use the same limit. A door with a shorter limit would never send
requests to an instance that its machine reports as ready. The default health path is a page of the
application, which its own event loop answers.
"""

from __future__ import annotations

HEALTH_ANSWER_S = 2.0
