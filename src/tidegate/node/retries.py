"""The wait before a failed message is tried again."""

from __future__ import annotations

import random

from tidegate.core.model import QueuePolicy


def retry_wait_s(policy: QueuePolicy, failed: int) -> float:
    """Return the seconds to wait after `failed` failures.

        wait = min(first * factor ** (failed - 1), max)

    Less a random part of up to `jitter` of it.
    """
    # Limited, since a thousand failures would overflow a float.
    steps = min(failed - 1, 1000)
    try:
        wait_s = policy.retry_first_s * policy.retry_factor**steps
    except OverflowError:
        wait_s = policy.retry_max_s
    return min(wait_s, policy.retry_max_s) * (1 - policy.retry_jitter * random.random())
