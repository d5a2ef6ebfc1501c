"""A balancing policy written by the user, named by `module:Class`, in the process of a door.

The policy runs for every request, so an error in it must not stop the door. If it raises, or
returns something that is not a candidate, the default policy chooses and the log gives the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random
from time import monotonic

from tidegate.core.errors import InvalidValue
from tidegate.fleet.user_module import user_module
from tidegate.laws.balancing import BetterOfTwo, Chosen, Policy, policy_of

log = logging.getLogger(__name__)

# The time between two log records about one policy, which may fail for thousands of requests a
# second.
_COMPLAINT_S = 60.0


class OwnPolicy:
    """The user's policy, with a default policy for its failures."""

    def __init__(self, name: str, own: Policy, random: Random) -> None:
        self._name = name
        self._own = own
        self._instead = BetterOfTwo(random)
        self._complained_at = -_COMPLAINT_S

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        failure: Exception | None = None
        said = "it chose none of the candidates"
        try:
            chosen = self._own.choose(candidates, asker, family)
            if any(one is chosen for one in candidates):
                return chosen
        except Exception as raised:
            failure = raised
            said = "it failed"
        now = monotonic()
        if now >= self._complained_at + _COMPLAINT_S:
            self._complained_at = now
            log.error(
                "the policy %s: %s, and better-of-two chooses instead",
                *(self._name, said),
                exc_info=failure,
            )
        return self._instead.choose(candidates, asker, family)


def policy_said(name: str, random: Random) -> Policy:
    """Return a built-in policy by its name, or the user's by `module:Class`.

    Raise `InvalidValue` if it does not exist or cannot be created.
    """
    module_name, colon, class_name = name.partition(":")
    if not colon:
        return policy_of(name, random)
    if not module_name or not class_name.isidentifier():
        raise InvalidValue(f"{name!r} is no MODULE:CLASS, such as nearest:Nearest")
    module = user_module(module_name)
    made = getattr(module, class_name, None)
    where = f"{module_name} ({getattr(module, '__file__', None) or 'no file'})"
    if made is None:
        raise InvalidValue(f"{where} has no {class_name!r}")
    if not isinstance(made, type):
        raise InvalidValue(
            f"{class_name!r} in {where} is of type {type(made).__name__}, and no class"
        )
    if not callable(getattr(made, "choose", None)):
        raise InvalidValue(
            f"{class_name!r} in {where} has no choose(candidates, asker, family), by which a "
            "policy says who gets the next request"
        )
    try:
        own = made()
    except Exception as failure:
        raise InvalidValue(
            f"{class_name!r} in {where} cannot be made without arguments: {failure!r}"
        ) from None
    return OwnPolicy(name, own, random)
