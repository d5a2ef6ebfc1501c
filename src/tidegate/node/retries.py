"""When a message that failed is tried again."""

from __future__ import annotations

import random

from tidegate.core.model import QueuePolicy


def retry_wait_s(policy: QueuePolicy, failed: int) -> float:
    """wait = min(first · factor^(failed − 1), max), less a random part of up to `jitter` of it."""
    # Capped before it overflows: a thousand failures would.
    steps = min(failed - 1, 1000)
    try:
        wait_s = policy.retry_first_s * policy.retry_factor**steps
    except OverflowError:
        wait_s = policy.retry_max_s
    return min(wait_s, policy.retry_max_s) * (1 - policy.retry_jitter * random.random())
